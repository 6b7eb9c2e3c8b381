"""Arrow rows in types of the same layout: PySpark says of fields inside of others whether they may be NULL, Arrow's data do not
depend on it."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["in_layout"]


def in_layout(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `rows`, in their order, in the types of `schema`."""
    arrays = [_as(column, field.type) for column, field in zip(rows.columns, schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The same values in a type of the same layout, whose fields may be NULL where those of the other may not."""
    if column.type.equals(kind):
        return column
    return pa.chunked_array([_same(chunk, kind) for chunk in column.chunks], kind)


def _same(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind):
        return array
    if not pa.types.is_nested(kind):
        return array.cast(kind)
    if array.offset:
        array = array.take(pa.array(range(len(array)), pa.int64()))  # without it
    if pa.types.is_struct(kind):
        inner = [_same(array.field(n), kind.field(n).type) for n in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        own = pa.StructArray.from_arrays(
            [array.keys, array.items], fields=[array.type.key_field, array.type.item_field]
        )
        inner = [_same(own, entries)]
    else:
        inner = [_same(array.values, kind.value_type)]
    buffers = array.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, children=inner)
