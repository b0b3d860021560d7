"""Students' Dropout, Nursery, Wine Quality.

Students: the codes of the variable table on the UCI page; admission grades 0 to 200 and
course grades 0 to 20 are the Portuguese scales. Ages, numbers of courses and examinations
and the three economic rates (percent) have round ranges.

Nursery: the lists of `nursery.names`, which are complete.

Wine: ranges that oenology allows for table wine (g/l, mg/l of sulphur dioxide, pH, volume
percent); the score is documented as 0 to 10.
"""

from __future__ import annotations

from noisewise.datasets.columns import Binary, Categorical, Column, Numeric
from noisewise.datasets.schema import Schema


def _coded(text: str) -> Categorical:
    return Categorical(tuple(int(code) for code in text.split()))


_STUDENT: dict[str, Column] = {
    "Marital status": _coded("1 2 3 4 5 6"),
    "Application mode": _coded("1 2 5 7 10 15 16 17 18 26 27 39 42 43 44 51 53 57"),
    "Application order": Numeric(0, 9),
    "Course": _coded(
        "33 171 8014 9003 9070 9085 9119 9130 9147 9238 9254 9500 9556 9670 9773 9853 9991"
    ),
    "Daytime/evening attendance": Binary(),
    "Previous qualification": _coded("1 2 3 4 5 6 9 10 12 14 15 19 38 39 40 42 43"),
    "Previous qualification (grade)": Numeric(0, 200),
    "Nacionality": _coded("1 2 6 11 13 14 17 21 22 24 25 26 32 41 62 100 101 103 105 108 109"),
    "Mother's qualification": _coded(
        "1 2 3 4 5 6 9 10 11 12 14 18 19 22 26 27 29 30 34 35 36 37 38 39 40 41 42 43 44"
    ),
    "Father's qualification": _coded(
        "1 2 3 4 5 6 9 10 11 12 13 14 18 19 20 22 25 26 27 29 30 31 33 34 35 36 37 38 39 40 41 "
        "42 43 44"
    ),
    "Mother's occupation": _coded(
        "0 1 2 3 4 5 6 7 8 9 10 90 99 122 123 125 131 132 134 141 143 144 151 152 153 171 173 "
        "175 191 192 193 194"
    ),
    "Father's occupation": _coded(
        "0 1 2 3 4 5 6 7 8 9 10 90 99 101 102 103 112 114 121 122 123 124 131 132 134 135 141 "
        "143 144 151 152 153 154 161 163 171 172 174 175 181 182 183 192 193 194 195"
    ),
    "Admission grade": Numeric(0, 200),
    "Displaced": Binary(),
    "Educational special needs": Binary(),
    "Debtor": Binary(),
    "Tuition fees up to date": Binary(),
    "Gender": Binary(),
    "Scholarship holder": Binary(),
    "Age at enrollment": Numeric(16, 80),
    "International": Binary(),
}
for _term in ("1st sem", "2nd sem"):
    _STUDENT |= {
        f"Curricular units {_term} (credited)": Numeric(0, 30),
        f"Curricular units {_term} (enrolled)": Numeric(0, 30),
        f"Curricular units {_term} (evaluations)": Numeric(0, 50),
        f"Curricular units {_term} (approved)": Numeric(0, 30),
        f"Curricular units {_term} (grade)": Numeric(0, 20),
        f"Curricular units {_term} (without evaluations)": Numeric(0, 30),
    }
_STUDENT |= {
    "Unemployment rate": Numeric(0, 30),
    "Inflation rate": Numeric(-5, 10),
    "GDP": Numeric(-10, 10),
}

STUDENTS = Schema(
    _STUDENT,
    target="Target",
    classes=("Dropout", "Enrolled", "Graduate"),
    source="the variable table at UCI; ranges of ages, courses and rates are round choices",
)

NURSERY = Schema(
    {
        "parents": Categorical(("usual", "pretentious", "great_pret")),
        "has_nurs": Categorical(("proper", "less_proper", "improper", "critical", "very_crit")),
        "form": Categorical(("complete", "completed", "incomplete", "foster")),
        "children": Categorical(("1", "2", "3", "more")),
        "housing": Categorical(("convenient", "less_conv", "critical")),
        "finance": Binary(("convenient", "inconv")),
        "social": Categorical(("nonprob", "slightly_prob", "problematic")),
        "health": Categorical(("recommended", "priority", "not_recom")),
    },
    target="class",
    classes=("not_recom", "recommend", "very_recom", "priority", "spec_prior"),
    source="nursery.names at UCI",
)

WINE = Schema(
    {
        "fixed acidity": Numeric(0, 20),
        "volatile acidity": Numeric(0, 2),
        "citric acid": Numeric(0, 2),
        "residual sugar": Numeric(0, 100, transform="log1p"),
        "chlorides": Numeric(0, 1, transform="sqrt"),
        "free sulfur dioxide": Numeric(0, 300, transform="sqrt"),
        "total sulfur dioxide": Numeric(0, 500),
        "density": Numeric(0.98, 1.05),
        "pH": Numeric(2.5, 4.5),
        "sulphates": Numeric(0, 2.5),
        "alcohol": Numeric(7, 16),
    },
    target="quality",
    classes=tuple(range(11)),
    source="ranges that oenology allows for table wine; the documented score 0 to 10",
)
