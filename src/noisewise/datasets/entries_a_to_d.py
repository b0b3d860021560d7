"""The datasets A to D: facts, checksums, public sources and traps.

`sha256` is of the prepared file (a parquet table or npz images), `content` is the
:func:`~noisewise.datasets.content_hash` of its values. Raw checksums are given only
where a publisher's or loader's own figure is known; every download is verified by its
content whatever the raw file is.
"""

from __future__ import annotations

from noisewise.datasets.registry import Checksum, DatasetInfo, Source
from noisewise.datasets.source_forms import CC_BY, GITHUB, UCI, archive, california, plain

_CALIFORNIA_CITATION = (
    "R. K. Pace and R. Barry, Sparse spatial autoregressions, "
    "Statistics & Probability Letters 33, 1997; StatLib"
)

A_TO_D = (
    DatasetInfo(
        name="adult",
        title="Adult (Census Income)",
        kind="table",
        rows=48842,
        columns=15,
        target="income",
        classes=2,
        licence=CC_BY,
        citation="B. Becker and R. Kohavi, Adult, UCI, 1996, doi:10.24432/C5XW20",
        page="https://archive.ics.uci.edu/dataset/2/adult",
        filename="adult.parquet",
        size=398481,
        sha256="0a7a03e272e689acbb15750764b69b1355921035ac4567960109192e80d55927",
        content="b50e902d617a811fd113d9e9435e2238349a1345241c251ff35398cf2dc2522c",
        sources=(
            archive(
                "adult",
                f"{UCI}/2/adult.zip",
                "adult.data",
                "adult.test",
                checksums=(
                    Checksum("md5", "5d7c39d7b8804f071cdd1f2a7c460872"),
                    Checksum("md5", "35238206dfdf7f1fe215bbb874adecdc"),
                ),
            ),
        ),
        splits=(("train", 0, 32561), ("test", 32561, 48842)),
        notes=(
            "Rows 0 to 32560 are adult.data (24.08 % >50K), the rest is adult.test (23.62 %).",
            "The full stop that ends the labels of adult.test was removed.",
            "fnlwgt is a survey weight, not a property of the person.",
            "52 rows are exact duplicates.",
        ),
    ),
    DatasetInfo(
        name="bank_marketing",
        title="Bank Marketing (bank-full)",
        kind="table",
        rows=45211,
        columns=17,
        target="y",
        classes=2,
        licence=CC_BY,
        citation="S. Moro, P. Rita, P. Cortez, Bank Marketing, UCI, 2014, doi:10.24432/C5K306",
        page="https://archive.ics.uci.edu/dataset/222/bank+marketing",
        filename="bank_marketing.parquet",
        size=291822,
        sha256="b40be9251f785051b1c52615a5700c10ee900f9f28e686967768fd1838dd1f2c",
        content="65d4487b7030be685ee208ace57ad14459b5f83777190204ac3fb149f1b260b5",
        sources=(archive("bank", f"{UCI}/222/bank+marketing.zip", "bank.zip>bank-full.csv"),),
        notes=(
            "duration is known only after the call, so a model that uses it cannot be used "
            "before one; the schema drops it.",
            "unknown is a category of the source, pdays -1 means never contacted before.",
        ),
    ),
    DatasetInfo(
        name="breast_cancer_wdbc",
        title="Breast Cancer Wisconsin (Diagnostic)",
        kind="table",
        rows=569,
        columns=31,
        target="target",
        classes=2,
        licence=CC_BY,
        citation=(
            "W. Wolberg, O. Mangasarian, N. Street, W. Street, Breast Cancer Wisconsin "
            "(Diagnostic), UCI, 1993, doi:10.24432/C5DW2B"
        ),
        page="https://archive.ics.uci.edu/dataset/17/breast+cancer+wisconsin+diagnostic",
        filename="breast_cancer_wdbc.parquet",
        size=112912,
        sha256="2e05d75223b77b5742a0115390d779d26954b5f8d6b5ea4a7833d3b898722ceb",
        content="2435860808ccea9ca742a94ca4a6c4d0ed420b61f89f6208d039417d8b933f3c",
        sources=(
            Source("wdbc-scikit-learn", ()),
            archive("wdbc", f"{UCI}/17/breast+cancer+wisconsin+diagnostic.zip", "wdbc.data"),
        ),
        notes=(
            "0 is malignant and 1 is benign, as in scikit-learn.",
            "With 569 records the noise of any strong privacy guarantee is felt.",
        ),
    ),
    DatasetInfo(
        name="california_housing",
        title="California Housing (averages per household)",
        kind="table",
        rows=20640,
        columns=9,
        target="MedHouseVal",
        classes=0,
        licence="none stated",
        citation=_CALIFORNIA_CITATION,
        page="https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.html",
        filename="california_housing.parquet",
        size=650169,
        sha256="97bd8a88bd85e68c691800085fc04ab52d01fcab69459e6d6f49ae0500df89b9",
        content="285c0df1bdccae6d7e439584e85239ee7518302780ef1b2e46f07624506c4bc5",
        sources=california("california"),
        notes=(
            "A record is a census block group, not a household or a person.",
            "The target is in units of 100000 dollars and was capped at 5.00001 by the source.",
        ),
    ),
    DatasetInfo(
        name="california_housing_raw",
        title="California Housing (totals per block group)",
        kind="table",
        rows=20640,
        columns=9,
        target="medianHouseValue",
        classes=0,
        licence="none stated",
        citation=_CALIFORNIA_CITATION,
        page="https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.html",
        filename="california_housing_raw.parquet",
        size=324252,
        sha256="272a938a521c5f61aa294b868fae688444c759017357d3f5d63d2f1f08303489",
        content="bd8700409c8020c9fc1fd7b2665b9eb841757322cbb9b07d13315e67eb38d9a2",
        sources=california("california-raw"),
        notes=(
            "A record is a census block group, not a household or a person.",
            "The target is in dollars and was capped at 500001 by the source.",
        ),
    ),
    DatasetInfo(
        name="cifar10",
        title="CIFAR-10",
        kind="images",
        rows=60000,
        columns=0,
        target="y_train",
        classes=10,
        licence="none stated; cite the report",
        citation=(
            "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
            "technical report, 2009"
        ),
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        filename="cifar10.npz",
        size=184381002,
        sha256="0690208241212107886e632ad2afff6fcf4554133ebc9542cceeafdbafae537c",
        content="f1d1599404e3186fc17926698a36335d3cec7111fb1bfed97ba76274e6878a62",
        sources=(
            archive(
                "cifar10",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                *(f"data_batch_{number}.bin" for number in range(1, 6)),
                "test_batch.bin",
            ),
        ),
        shape=(32, 32, 3),
        splits=(("train", 0, 50000), ("test", 50000, 60000)),
        notes=("The download is 162 MB.",),
    ),
    DatasetInfo(
        name="cifar10_small",
        title="CIFAR-10, first training batch and first 2000 test images",
        kind="images",
        rows=12000,
        columns=0,
        target="y_train",
        classes=10,
        licence="none stated; cite the report",
        citation=(
            "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, "
            "technical report, 2009"
        ),
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        filename="cifar10_small.npz",
        size=27922630,
        sha256="1b36f443460b794703cd8b00001dd52162a7bda7b0740de6354e123b5d370a69",
        content="d521c57347fe0a7451c5b5df0f2d6cbd3b092478c580738d0a01adb2fa496719",
        sources=(
            archive(
                "cifar10-small",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "data_batch_1.bin",
                "test_batch.bin",
            ),
        ),
        shape=(32, 32, 3),
        splits=(("train", 0, 10000), ("test", 10000, 12000)),
        notes=(
            "A sixth of CIFAR-10: accuracies are not comparable with the full set.",
            "The download is the whole binary archive (162 MB).",
        ),
    ),
    DatasetInfo(
        name="default_credit",
        title="Default of Credit Card Clients",
        kind="table",
        rows=30000,
        columns=25,
        target="default.payment.next.month",
        classes=2,
        licence=CC_BY,
        citation="I-C. Yeh, Default of Credit Card Clients, UCI, 2009, doi:10.24432/C55S3H",
        page="https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients",
        filename="default_credit.parquet",
        size=1219547,
        sha256="6a5f07252848d3bed6ee973153cd991e15a70514f96b45dca44ce2edec9adf18",
        content="00c218e6c19961e61e7ee29e3ea154b0ead64bb787bf9732bff557ca5c6e4645",
        sources=(
            plain("default-credit", f"{UCI}/350/data.csv"),
            plain(
                "default-credit",
                f"{GITHUB}/nikhilchoppa/Credit_Cards_Data_Privacy/"
                "7b77a18dfaaebe57f10770e5b00751605ba284e7/UCI_Credit_Card.csv",
            ),
        ),
        ids=("ID",),
        notes=(
            "ID is a row number; the schema drops it.",
            "The first repayment column is PAY_0, and there is no PAY_1.",
            "Undocumented codes (EDUCATION 0, 5, 6 and MARRIAGE 0) are kept.",
        ),
    ),
    DatasetInfo(
        name="diabetes130",
        title="Diabetes 130-US Hospitals, 1999-2008",
        kind="table",
        rows=101766,
        columns=50,
        target="readmitted",
        classes=3,
        licence=CC_BY,
        citation=(
            "J. Clore, K. Cios, J. DeShazo, B. Strack, Diabetes 130-US Hospitals for Years "
            "1999-2008, UCI, 2014, doi:10.24432/C5230J"
        ),
        page="https://archive.ics.uci.edu/dataset/296/diabetes+130-us+hospitals+for+years+1999-2008",
        filename="diabetes130.parquet",
        size=1990784,
        sha256="58a478f4b688077f96eb81c0cb60e3be85753f94bead6511e7e3a49bd94f9f17",
        content="a57472527e62099934fa743048cd4efe6c6e25c03b9858a321fa33d298cb9a6c",
        sources=(
            archive(
                "diabetes",
                f"{UCI}/296/diabetes+130-us+hospitals+for+years+1999-2008.zip",
                "diabetic_data.csv",
            ),
        ),
        ids=("encounter_id", "patient_nbr"),
        notes=(
            "A record is a hospital stay: 101766 stays of 71518 patients (patient_nbr), so "
            "record-level privacy is not patient-level privacy.",
            "None in max_glu_serum and A1Cresult is a category (not measured), kept as text.",
        ),
    ),
)
