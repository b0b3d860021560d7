"""Who must be trusted for what: the sentences that an aggregator adds to a privacy statement.

An epsilon across parties is worth what its protocol is worth. So the protocol's promises and
its limits stand in the :class:`~noisewise.privacy.Statement` beside the epsilon, and a run
in which a promise was given up on purpose (a test without noise) can state no epsilon at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from noisewise.privacy import NOT_SOUND

__all__ = ["NOISELESS", "ThreatModel"]

NOISELESS = f"{NOT_SOUND}: the noise was switched off for a test; this result is not private"


@dataclass(frozen=True)
class ThreatModel:
    """What a protocol promises, to whom, and what it does not.

    Parameters
    ----------
    protocol : str
        Its name.
    adversary : str
        "semi-honest" (parties follow the protocol but remember everything), "malicious", or
        "none" (a trusted curator).
    must_not_collude : str
        Whose joint memory would reveal records.
    server_sees : str
        What one server learns, and what it cannot.
    result_goes_to : str
        Who learns the noisy sums, and nothing else.
    drop_outs : str
        What happens when somebody stops answering.
    noise : str
        Who adds noise, and how much of it the worst allowed collusion leaves.
    hardness : str
        The assumption under which shares look random; empty if none is needed.
    not_promised : tuple of str
        What an attacker can still do.
    noiseless : bool
        Whether noise was switched off for a test. No epsilon can then be stated.
    excluded : tuple of str
        Parties that were left out because their contributions did not prove to be valid.
    rows : str
        What is taken for granted about how parties made their rows, where nobody sees that.

    Examples
    --------
    >>> from noisewise.federated import LocalAggregator
    >>> print(LocalAggregator().threat.sentences[0])
    protocol: trusted curator
    """

    protocol: str
    adversary: str
    must_not_collude: str
    server_sees: str
    result_goes_to: str
    drop_outs: str
    noise: str
    hardness: str = ""
    not_promised: tuple[str, ...] = ()
    noiseless: bool = False
    excluded: tuple[str, ...] = ()
    rows: str = ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences for a statement's assumptions, in a fixed order."""
        said = [
            f"protocol: {self.protocol}",
            f"adversary: {self.adversary}",
            f"must not collude: {self.must_not_collude}",
            f"a server sees: {self.server_sees}",
            f"the result goes to: {self.result_goes_to}",
            f"drop-outs: {self.drop_outs}",
            f"noise: {self.noise}",
        ]
        if self.hardness:
            said.append(f"computational assumption: {self.hardness}")
        if self.rows:
            said.append(f"rows of the parties: {self.rows}")
        said += [f"not promised: {sentence}" for sentence in self.not_promised]
        if self.excluded:
            said.append(
                "left out, because they do not count their records as agreed: "
                + ", ".join(self.excluded)
            )
        if self.noiseless:
            said.insert(0, NOISELESS)
        return tuple(said)

    def without_noise(self) -> ThreatModel:
        """Return the model of a test run, under which no epsilon can be stated."""
        return replace(self, noiseless=True)
