"""The health of a database: what is found when somebody looks, and changes nothing.

`looking` opens, `surroundings` knows what lies around a file, `log` its write-ahead log, `engines` what SQLite and
PostgreSQL say of themselves, and `rows` what rows of any table can have wrong with them.
"""
