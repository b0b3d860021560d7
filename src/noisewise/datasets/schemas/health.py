"""Diabetes 130-US Hospitals, Framingham, Breast Cancer Wisconsin.

Diabetes: the feature table of Strack et al. 2014 (decades of age, stays of 1 to 14 days,
four answers per drug), the codes of `IDs_mapping.csv`, the paper's grouping of ICD-9
diagnoses, and the four specialties it names. Counts of procedures, medications and visits
have round ranges. Weight (97 % missing) and payer code (40 %) are left out, as there.

Framingham: medically plausible ranges in the units of the study (mg/dl, mm Hg, kg/m2,
beats a minute, cigarettes a day); none is documented for the extract.

Breast cancer: no limits are documented. Sizes follow from nuclei of up to 40 pixels radius
(perimeter 2 pi r, area pi r^2); the other features and all standard errors have round
ranges of the order that their definitions give (Street, Wolberg, Mangasarian 1993).
"""

from __future__ import annotations

from noisewise.datasets.columns import (
    Binary,
    Categorical,
    CodeRanges,
    Column,
    Drop,
    Numeric,
    Ordinal,
)
from noisewise.datasets.schema import Schema

_DIAGNOSES = CodeRanges(
    (
        ("circulatory", ((390, 459), (785, 785))),
        ("respiratory", ((460, 519), (786, 786))),
        ("digestive", ((520, 579), (787, 787))),
        ("diabetes", ((250, 250),)),
        ("injury", ((800, 999),)),
        ("musculoskeletal", ((710, 739),)),
        ("genitourinary", ((580, 629), (788, 788))),
        ("neoplasms", ((140, 239),)),
    )
)
_DRUG = Categorical(("No", "Steady", "Up", "Down"))
_DRUGS = (
    "metformin",
    "repaglinide",
    "nateglinide",
    "chlorpropamide",
    "glimepiride",
    "acetohexamide",
    "glipizide",
    "glyburide",
    "tolbutamide",
    "pioglitazone",
    "rosiglitazone",
    "acarbose",
    "miglitol",
    "troglitazone",
    "tolazamide",
    "examide",
    "citoglipton",
    "insulin",
    "glyburide-metformin",
    "glipizide-metformin",
    "glimepiride-pioglitazone",
    "metformin-rosiglitazone",
    "metformin-pioglitazone",
)
_VISITS = Numeric(0, 100, transform="log1p")
_STAY: dict[str, Column] = {
    "encounter_id": Drop("a number of the stay"),
    "patient_nbr": Drop("a number of the patient"),
    "race": Categorical(
        ("Caucasian", "Asian", "AfricanAmerican", "Hispanic", "Other"), missing=True
    ),
    "gender": Categorical(("Male", "Female")),
    "age": Ordinal(tuple(f"[{start}-{start + 10})" for start in range(0, 100, 10))),
    "weight": Drop("97 % missing, as documented"),
    "admission_type_id": Categorical(tuple(range(1, 9))),
    "discharge_disposition_id": Categorical(tuple(range(1, 31))),
    "admission_source_id": Categorical(tuple(range(1, 27))),
    "time_in_hospital": Numeric(1, 14),
    "payer_code": Drop("40 % missing, as documented"),
    "medical_specialty": Categorical(
        ("InternalMedicine", "Cardiology", "Surgery-General", "Family/GeneralPractice"),
        missing=True,
    ),
    "num_lab_procedures": Numeric(0, 150),
    "num_procedures": Numeric(0, 10),
    "num_medications": Numeric(0, 100),
    "number_outpatient": _VISITS,
    "number_emergency": _VISITS,
    "number_inpatient": _VISITS,
    "diag_1": _DIAGNOSES,
    "diag_2": _DIAGNOSES,
    "diag_3": _DIAGNOSES,
    "number_diagnoses": Numeric(0, 20),
    "max_glu_serum": Categorical((">200", ">300", "Norm", "None")),
    "A1Cresult": Categorical((">8", ">7", "Norm", "None")),
}
_STAY |= dict.fromkeys(_DRUGS, _DRUG)
_STAY |= {"change": Binary(("No", "Ch")), "diabetesMed": Binary(("No", "Yes"))}

DIABETES = Schema(
    _STAY,
    target="readmitted",
    classes=("NO", "<30", ">30"),
    source=("Strack et al. 2014 and IDs_mapping.csv at UCI; ranges of counts are round choices"),
)

FRAMINGHAM = Schema(
    {
        "male": Binary(),
        "age": Numeric(20, 100),
        "education": Ordinal((1, 2, 3, 4), missing="indicator"),
        "currentSmoker": Binary(),
        "cigsPerDay": Numeric(0, 100, transform="sqrt"),
        "BPMeds": Binary(),
        "prevalentStroke": Binary(),
        "prevalentHyp": Binary(),
        "diabetes": Binary(),
        "totChol": Numeric(50, 500),
        "sysBP": Numeric(60, 260),
        "diaBP": Numeric(30, 160),
        "BMI": Numeric(10, 60),
        "heartRate": Numeric(30, 200),
        "glucose": Numeric(20, 600, transform="log1p", missing="indicator"),
    },
    target="TenYearCHD",
    classes=(0, 1),
    source="medically plausible ranges in the units of the study",
)

# feature: (largest mean or worst value, largest standard error)
_NUCLEUS = {
    "radius": (40, 5),
    "texture": (50, 5),
    "perimeter": (250, 40),
    "area": (5000, 500),
    "smoothness": (0.25, 0.05),
    "compactness": (1, 0.2),
    "concavity": (1, 0.4),
    "concave points": (0.4, 0.1),
    "symmetry": (0.6, 0.1),
    "fractal dimension": (0.2, 0.05),
}
_CELLS: dict[str, Column] = {f"mean {name}": Numeric(0, a) for name, (a, _) in _NUCLEUS.items()}
_CELLS |= {f"{name} error": Numeric(0, b) for name, (_, b) in _NUCLEUS.items()}
_CELLS |= {f"worst {name}": Numeric(0, a) for name, (a, _) in _NUCLEUS.items()}

WDBC = Schema(
    _CELLS,
    target="target",
    classes=(0, 1),
    source="definitions of the features in Street, Wolberg, Mangasarian 1993; round choices",
)
