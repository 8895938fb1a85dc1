"""The declarative base that every model of every area shares."""

from __future__ import annotations

from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase

NAMING_CONVENTION = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
"""Constraint names come from here, never by hand: an unnamed constraint is lost in a batch rebuild (MG-02)."""


class Base(DeclarativeBase):
    """Base of all models; its metadata holds the tables of the areas imported so far.

    Columns name their type from `db/types.py` explicitly: the type carries the field's name, so that a refused value
    is refused by name, before SQL.
    """

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
