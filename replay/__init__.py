"""Proves from the files of a wheel group, and from what its topics hold, that each accepted message
was delivered once, in time. PySpark; nothing here is imported by a node.

The data's way through the room:

    layout -> plan -> reading -> source             what there is; tasks; rows; Spark's data source
                        |
                      scan (facts)                  one fixed-width fact for each row seen anywhere
                        |
                      judge -> validators -> proof  all facts of an offset side by side
                        |
                      report, page                  report.json, report.html
"""
