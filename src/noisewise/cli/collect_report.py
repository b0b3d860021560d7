"""The HTML report of ``noisewise collect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisewise.cli.curve_charts import ecdf_chart, roc_chart
from noisewise.reports import Page, promised

if TYPE_CHECKING:
    from noisewise.federated.network import ClientSettings, Taken
    from noisewise.privacy import Statement

__all__ = ["write_report"]


def write_report(
    found: Any,
    curve: str,
    rows: list[tuple[str, str]],
    promise: Statement | None,
    taken: list[Taken],
    settings: ClientSettings,
    path: Path,
    warning: str = "",
) -> Path:
    """Write the curve of all parties, what it promises and whom it trusts.

    Parameters
    ----------
    found : object
        The curve.
    curve : str
        Which one it is.
    rows : list
        Its numbers, as text.
    promise : Statement or None
        None for a test without noise, which `warning` says.
    taken : list
        The releases.
    settings : ClientSettings
    path : Path
    warning : str
    """
    study = settings.study
    page = Page(
        f"One {NAMES[curve]} of {taken[0].contributions} parties",
        f"Study {study.name}, round {study.round}. No party showed its records to anybody.",
    )
    card = ("What is promised", "nothing", "This was a test without noise.")
    if promise is None:
        page.warning(warning)
    page.answer(
        card if promise is None else promised(promise),
        ("What was found", f"{rows[0][0]}: {rows[0][1]}", [f"{a}: {b}" for a, b in rows[1:3]]),
        mood="bad" if promise is None else "good",
        steps=["Throw this page away; ask again without noiseless_test."]
        if promise is None
        else [
            "Compare the fingerprint of the study below with what was agreed.",
            "Share this page together with statement.json: it says whom the result trusts.",
            "The same question again is free; a new one is charged by every server.",
        ],
    )
    page.heading("The curve")
    if curve == "roc":
        page.charts((roc_chart(found), "ROC curve of all parties, with its 95 % region"))
    elif curve == "ecdf":
        page.charts((ecdf_chart(found), "Distribution over all parties, with its 95 % band"))
    else:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        from noisewise.cli.collect import _axes

        with plt.rc_context({"font.size": 13}):
            figure, axes = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
            _axes(found, curve, axes)
            page.figures((figure, f"{NAMES[curve].capitalize()} over all parties"))
    page.heading("All numbers").table(("measure", "value"), rows)
    page.heading("Releases").table(
        ("release", "contributions", "records"),
        [(t.name, t.contributions, "private" if t.records is None else t.records) for t in taken],
    )
    page.heading("Fingerprint of the study").code(study.fingerprint)
    if promise is not None:
        page.statement(promise)
    return page.reproduce().write(path)


NAMES = {
    "roc": "ROC curve",
    "ecdf": "distribution",
    "histogram": "histogram",
    "hosmer-lemeshow": "test of calibration",
}
