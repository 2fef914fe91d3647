"""Proves from the files of a wheel group, and from the records in its topics, that each accepted
message was delivered once, in time. PySpark; no node imports anything of it.

Data goes through the room in this order:

    layout -> reading -> source             what exists; rows; Spark's data source
                 |
              scan (facts)                  one fixed-width fact for each row read
                 |
              judge -> validators -> proof  all facts of an offset side by side
                 |
              page                          report.json, report.html
"""
