"""Imported once by the process from which all others are forked."""

from federated.network.children import warm_up

warm_up()
