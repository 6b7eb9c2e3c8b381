"""Where the files of a warehouse lie: the one way to them (`base.Store`), on a local disk (`local`) and elsewhere."""
