"""The catalog: what a warehouse holds, and the transactions that change it.

| module | subject |
|---|---|
| model | the records: tables, queries, change sets, layouts |
| apply, destinations, sources | DDL, from one state of the definitions to the next |
| store | `Catalog`: transactions, attempts, recovery |
| reading | what can be read of it |
| view, layouts, commits, inline | what is kept in memory |
| unit, attempts, retention | what a transaction says, where its files lie, what may go |
| schema, migrations, persist, documents, lease | the database |
| tables, flush, delta_files, delta_lake | Parquet files, and their face as Delta Lake tables |
"""
