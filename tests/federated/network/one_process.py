"""Both servers' state in this process, without the network between."""

from __future__ import annotations

import time

import numpy as np

from federated.network.harness import Federation
from noisewise.federated.network.intake import Intake
from noisewise.federated.network.manifest import Manifest, set_digest, unframe
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.releases import Releases
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.settings import Limits, ServerSettings
from noisewise.federated.network.state import ServerState
from noisewise.federated.questions import RocQuestion


class OneProcess:
    """Two servers that all parties have contributed to."""

    def __init__(self, folder, seed=0, limits=None, **options):
        made = Federation.create(folder, np.random.default_rng(seed), **options)
        self.made, self.study, self.route = made, made.study, route_of(made.study)
        self.names = [server.name for server in self.study.servers]
        self.folder = folder
        self.limits = limits or Limits()
        self.members, self.parties = [], {}
        self.open()
        for party in made.data:
            self.contribute(party)

    def contribute(self, party):
        records = self.made.data[party]
        made_shares = self.route.make(records)
        common = self.route.check(0, made_shares[0], len(records))
        shares = dict(zip(self.names, made_shares, strict=True))
        manifest = Manifest.of(
            study=self.study.fingerprint, party=party, records=len(records), common=common,
            shares=shares, piece_size=1 << 20,
        )  # fmt: skip
        self.members.append(manifest.identifier)
        self.parties[manifest.identifier] = party
        for name in self.names:
            intake = self.intake(name)
            share = intake.check(manifest, manifest.identifier, party)
            job = intake.begin
            self.stores[name].submit(
                lambda c, job=job, m=manifest, s=share, d=shares[name]: job(c, m, s, d)
            ).result()
        return manifest.identifier

    def intake(self, server):
        return Intake(self.study, server, self.route, self.limits)

    def state_folder(self, server):
        return self.folder / f"{server}-state"

    def open(self, *names):
        self.states, self.releases = {}, {}
        try:
            for name in names or self.names:
                settings = ServerSettings.read(self.made.trial.config(name))
                state = self.states[name] = ServerState(settings)
                self.releases[name] = Releases(
                    self.study, name, state.store, self.route, state.ledger, state.marks
                )
        except BaseException:
            self.close()
            raise
        self.stores = {name: state.store for name, state in self.states.items()}
        self.ledgers = {name: state.ledger for name, state in self.states.items()}

    def close(self):
        for state in self.states.values():
            state.close()
        self.states = {}

    def measurement(self, epsilon=1.0):
        return Measurement.of(
            self.study, RocQuestion(self.made.question().domain, epsilon, relation="replace-one")
        )

    def reserve(self, server, name="first", measurement=None, members=None, excluded=()):
        wanted = set_digest(self.members if members is None else members)
        self.releases[server].reserve(
            name, "analyst", measurement or self.measurement(), wanted, list(excluded)
        )

    def make(self, server, name="first", measurement=None, members=None):
        wanted = set_digest(self.members if members is None else members)
        return self.releases[server].release(name, measurement or self.measurement(), wanted)

    def ask(self, server, name="first", measurement=None, members=None, excluded=()):
        self.reserve(server, name, measurement, members, excluded)
        return self.make(server, name, measurement, members)

    def withdraw(self, server, identifier, now=None, party=None):
        """Withdraw as the service does it."""
        marks, moment = self.states[server].marks, time.time() if now is None else now

        def job(connection):
            sender = party or self.parties[identifier]
            if self.intake(server).withdraw(connection, identifier, sender, moment):
                marks.set(connection)

        self.stores[server].submit(job).result()
        marks.write()

    def sums(self, name="first", **options):
        parts = [np.frombuffer(unframe(self.ask(s, name, **options))[1], "<i8") for s in self.names]
        return np.sum(parts, axis=0)
