"""Adult, California Housing.

Adult: `adult.names` and the census codebook behind it. Ages start at 17 (the extraction
rule AAGE > 16) and are top-coded at 90; hours a week are 1 to 99; capital gains are
top-coded at 99999; the range of capital losses is a round choice. `fnlwgt` is a weight of
the survey, and `education` says the same as `education-num`.

California: the borders of the state (32.5 to 42 degrees north, 114.1 to 124.5 west), and
the caps that the source states: median age of houses 52 years, median income 15.0001 (ten
thousands of dollars), median value 500001 dollars. Ranges of rooms and people are round
choices for a block group of 600 to 3000 people, wide enough for the exceptional ones.
"""

from __future__ import annotations

from noisewise.datasets.columns import Binary, Categorical, Drop, Numeric
from noisewise.datasets.schema import Schema

ADULT = Schema(
    {
        "age": Numeric(17, 90),
        "workclass": Categorical(
            (
                "Private",
                "Self-emp-not-inc",
                "Self-emp-inc",
                "Federal-gov",
                "Local-gov",
                "State-gov",
                "Without-pay",
                "Never-worked",
            ),
            missing=True,
        ),
        "fnlwgt": Drop("a weight of the survey, not a property of the person"),
        "education": Drop("the same as education-num"),
        "education-num": Numeric(1, 16),
        "marital-status": Categorical(
            (
                "Married-civ-spouse",
                "Divorced",
                "Never-married",
                "Separated",
                "Widowed",
                "Married-spouse-absent",
                "Married-AF-spouse",
            ),
        ),
        "occupation": Categorical(
            (
                "Tech-support",
                "Craft-repair",
                "Other-service",
                "Sales",
                "Exec-managerial",
                "Prof-specialty",
                "Handlers-cleaners",
                "Machine-op-inspct",
                "Adm-clerical",
                "Farming-fishing",
                "Transport-moving",
                "Priv-house-serv",
                "Protective-serv",
                "Armed-Forces",
            ),
            missing=True,
        ),
        "relationship": Categorical(
            ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
        ),
        "race": Categorical(
            ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black")
        ),
        "sex": Binary(("Female", "Male")),
        "capital-gain": Numeric(0, 99999, transform="log1p"),
        "capital-loss": Numeric(0, 5000, transform="log1p"),
        "hours-per-week": Numeric(1, 99),
        "native-country": Categorical(
            (
                "United-States",
                "Cambodia",
                "England",
                "Puerto-Rico",
                "Canada",
                "Germany",
                "Outlying-US(Guam-USVI-etc)",
                "India",
                "Japan",
                "Greece",
                "South",
                "China",
                "Cuba",
                "Iran",
                "Honduras",
                "Philippines",
                "Italy",
                "Poland",
                "Jamaica",
                "Vietnam",
                "Mexico",
                "Portugal",
                "Ireland",
                "France",
                "Dominican-Republic",
                "Laos",
                "Ecuador",
                "Taiwan",
                "Haiti",
                "Columbia",
                "Hungary",
                "Guatemala",
                "Nicaragua",
                "Scotland",
                "Thailand",
                "Yugoslavia",
                "El-Salvador",
                "Trinadad&Tobago",
                "Peru",
                "Hong",
                "Holand-Netherlands",
            ),
            missing=True,
        ),
    },
    target="income",
    classes=("<=50K", ">50K"),
    source="adult.names at UCI and the codebook of the US census; capital-loss is a round choice",
)

_CALIFORNIA_SOURCE = (
    "borders of California, caps stated by the publisher, round choices for block groups"
)

CALIFORNIA = Schema(
    {
        "MedInc": Numeric(0, 15.0001),
        "HouseAge": Numeric(0, 52),
        "AveRooms": Numeric(0, 100, transform="log1p"),
        "AveBedrms": Numeric(0, 30, transform="log1p"),
        "Population": Numeric(0, 50000, transform="log1p"),
        "AveOccup": Numeric(0, 100, transform="log1p"),
        "Latitude": Numeric(32.5, 42),
        "Longitude": Numeric(-124.5, -114.1),
    },
    target="MedHouseVal",
    target_range=Numeric(0, 5.00001),
    source=_CALIFORNIA_SOURCE,
)

CALIFORNIA_RAW = Schema(
    {
        "longitude": Numeric(-124.5, -114.1),
        "latitude": Numeric(32.5, 42),
        "housingMedianAge": Numeric(0, 52),
        "totalRooms": Numeric(0, 50000, transform="log1p"),
        "totalBedrooms": Numeric(0, 10000, transform="log1p"),
        "population": Numeric(0, 50000, transform="log1p"),
        "households": Numeric(0, 10000, transform="log1p"),
        "medianIncome": Numeric(0, 15.0001),
    },
    target="medianHouseValue",
    target_range=Numeric(0, 500001),
    source=_CALIFORNIA_SOURCE,
)
