"""Wraps every function of the package while tests run: shapes and types are checked, an int being a float."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
