"""German Credit, Default of Credit Card Clients, Bank Marketing.

German Credit: the codes of `german.doc` (also those it lists and never uses: A47, A95).
Months up to ten years and amounts up to 20000 DM are round choices for consumer credit;
the four small integers are codes 1 to 4 (1 and 2 for people liable). Savings and years of
employment are documented as ordered steps; A65, savings unknown, is put in the middle.

Default of Credit Card Clients: the documented codes of sex, education and marriage
(undocumented ones become "other"); repayment as a code, months of delay up to 9 and -1, -2
and 0 as the author explained them later, which are ways of paying and no numbers; limits
and bills up to a million NT dollars, a round choice.

Bank Marketing: the lists of `bank-names.txt`. Balances in euros between -20000 and
200000, up to 100 calls and up to 1000 days since the last one are round choices.
`duration` is known only after the call, so it is dropped.
"""

from __future__ import annotations

from noisewise.datasets.columns import Binary, Categorical, Column, Drop, Numeric, Ordinal
from noisewise.datasets.schema import Schema


def _numbered(stem: str, *numbers: int) -> Categorical:
    return Categorical(tuple(f"{stem}{number}" for number in numbers))


GERMAN = Schema(
    {
        "Attribute1": _numbered("A1", 1, 2, 3, 4),
        "Attribute2": Numeric(0, 120),
        "Attribute3": _numbered("A3", 0, 1, 2, 3, 4),
        "Attribute4": _numbered("A4", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
        "Attribute5": Numeric(0, 20000, transform="sqrt"),
        "Attribute6": Ordinal(("A61", "A62", "A65", "A63", "A64")),
        "Attribute7": Ordinal(("A71", "A72", "A73", "A74", "A75")),
        "Attribute8": Ordinal((1, 2, 3, 4)),
        "Attribute9": _numbered("A9", 1, 2, 3, 4, 5),
        "Attribute10": _numbered("A10", 1, 2, 3),
        "Attribute11": Ordinal((1, 2, 3, 4)),
        "Attribute12": _numbered("A12", 1, 2, 3, 4),
        "Attribute13": Numeric(18, 100),
        "Attribute14": _numbered("A14", 1, 2, 3),
        "Attribute15": _numbered("A15", 1, 2, 3),
        "Attribute16": Ordinal((1, 2, 3, 4)),
        "Attribute17": _numbered("A17", 1, 2, 3, 4),
        "Attribute18": Binary((1, 2)),
        "Attribute19": Binary(("A191", "A192")),
        "Attribute20": Binary(("A202", "A201")),
    },
    target="class",
    classes=(1, 2),
    source="german.doc at UCI; ranges of months, amount and age are round choices",
)

_MONTHS = (1, 2, 3, 4, 5, 6)
_CARDS: dict[str, Column] = {
    "ID": Drop("a row number"),
    "LIMIT_BAL": Numeric(0, 1_000_000, transform="sqrt"),
    "SEX": Binary((1, 2)),
    "EDUCATION": Categorical((1, 2, 3, 4)),
    "MARRIAGE": Categorical((1, 2, 3)),
    "AGE": Numeric(18, 100),
}
_REPAYMENT = Categorical(tuple(range(-2, 10)))
_CARDS |= dict.fromkeys(("PAY_0", *(f"PAY_{month}" for month in _MONTHS[1:])), _REPAYMENT)
_CARDS |= {
    f"BILL_AMT{month}": Numeric(-1_000_000, 1_000_000, transform="signed_log1p")
    for month in _MONTHS
}
_CARDS |= {f"PAY_AMT{month}": Numeric(0, 1_000_000, transform="log1p") for month in _MONTHS}

DEFAULT_CREDIT = Schema(
    _CARDS,
    target="default.payment.next.month",
    classes=(0, 1),
    source="the UCI page of the dataset; limits of amounts and age are round choices",
)

_MONTH_NAMES = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_YES = Binary(("no", "yes"))

BANK = Schema(
    {
        "age": Numeric(18, 100),
        "job": Categorical(
            (
                "admin.",
                "unknown",
                "unemployed",
                "management",
                "housemaid",
                "entrepreneur",
                "student",
                "blue-collar",
                "self-employed",
                "retired",
                "technician",
                "services",
            ),
        ),
        "marital": Categorical(("married", "divorced", "single")),
        "education": Categorical(("unknown", "secondary", "primary", "tertiary")),
        "default": _YES,
        "balance": Numeric(-20000, 200000, transform="signed_log1p"),
        "housing": _YES,
        "loan": _YES,
        "contact": Categorical(("unknown", "telephone", "cellular")),
        "day": Numeric(1, 31),
        "month": Categorical(_MONTH_NAMES),
        "duration": Drop("known only after the call"),
        "campaign": Numeric(1, 100, transform="log1p"),
        "pdays": Numeric(-1, 1000, transform="signed_log1p"),
        "previous": Numeric(0, 100, transform="log1p"),
        "poutcome": Categorical(("unknown", "other", "failure", "success")),
    },
    target="y",
    classes=("no", "yes"),
    source="bank-names.txt at UCI; ranges of age, balance, calls and days are round choices",
)
