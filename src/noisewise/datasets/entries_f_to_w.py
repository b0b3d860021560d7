"""The datasets F to W: facts, checksums, public sources and traps; see `entries_a_to_d`."""

from __future__ import annotations

from noisewise.datasets.registry import Checksum, DatasetInfo, RemoteFile, Source
from noisewise.datasets.source_forms import CC_BY, GITHUB, UCI, archive, idx, plain

_SST2 = f"{GITHUB}/awake020/pytorch_Bert_sst2/ce2ab1719d32182e6233b24b2de246bd32814fde/SST-2"
_WINE_CITATION = (
    "P. Cortez, A. Cerdeira, F. Almeida, T. Matos, J. Reis, Wine Quality, UCI, 2009, "
    "doi:10.24432/C56S3T"
)
_WINE_NOTE = "The score is ordered (0 to 10); few wines lie at the ends."

F_TO_W = (
    DatasetInfo(
        name="fashion_mnist",
        title="Fashion-MNIST",
        kind="images",
        rows=70000,
        columns=0,
        target="y_train",
        classes=10,
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
        page="https://github.com/zalandoresearch/fashion-mnist",
        filename="fashion_mnist.npz",
        size=30869925,
        sha256="5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469",
        content="f358589d4fad89a84ba5e99a0d23b62d4e8f62de7456dd01fc48a03deac46071",
        sources=(
            idx(f"{GITHUB}/zalandoresearch/fashion-mnist/master/data/fashion"),
            idx("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
        ),
        shape=(28, 28),
        splits=(("train", 0, 60000), ("test", 60000, 70000)),
    ),
    DatasetInfo(
        name="framingham",
        title="Framingham Heart Study, teaching extract",
        kind="table",
        rows=4238,
        columns=16,
        target="TenYearCHD",
        classes=2,
        licence="not stated; check before redistributing",
        citation="Framingham Heart Study teaching extract, as on Kaggle (dileep070)",
        page="https://www.kaggle.com/datasets/dileep070/heart-disease-prediction-using-logistic-regression",
        filename="framingham.parquet",
        size=43041,
        sha256="bc902b0989de903de0f51c112c47353e9958c41fade581e581750935e7823dfa",
        content="54b63efa1f0679dc5bb4ebab5097d1ce221828e0834a6a51df08c1ffcd59dd04",
        sources=(
            plain(
                "framingham",
                f"{GITHUB}/JeynerManzaba/Data_Regresion_Logistica/"
                "4fefe7cbd6f518c6097403b369dd95db845d9599/framingham.csv",
            ),
        ),
        notes=(
            "645 cells are null, 388 of them in glucose.",
            "A variant of 4240 rows is in circulation; this is the one of 4238.",
        ),
    ),
    DatasetInfo(
        name="german_credit",
        title="Statlog (German Credit Data)",
        kind="table",
        rows=1000,
        columns=21,
        target="class",
        classes=2,
        licence=CC_BY,
        citation="H. Hofmann, Statlog (German Credit Data), UCI, 1994, doi:10.24432/C5NC77",
        page="https://archive.ics.uci.edu/dataset/144/statlog+german+credit+data",
        filename="german_credit.parquet",
        size=15229,
        sha256="0462bf84747094799218f15d37823c7b88ef074385e07b2ff18bab904fe01547",
        content="713f223de1f235def9340b4fe6e42e61b92c3f31929da97abe700c7574a278a8",
        sources=(archive("german", f"{UCI}/144/statlog+german+credit+data.zip", "german.data"),),
        notes=(
            "Attribute1..20 are status, duration, history, purpose, amount, savings, employment, "
            "installment rate, personal status and sex, other debtors, residence since, property, "
            "age, other plans, housing, existing credits, job, people liable, telephone, "
            "foreign worker.",
            "Class 1 is good and 2 is bad; the source asks for a cost matrix (bad as good: 5).",
        ),
    ),
    DatasetInfo(
        name="mnist",
        title="MNIST handwritten digits",
        kind="images",
        rows=70000,
        columns=0,
        target="y_train",
        classes=10,
        licence="CC BY-SA 3.0",
        citation="Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998",
        page="http://yann.lecun.com/exdb/mnist/",
        filename="mnist.npz",
        size=11490519,
        sha256="06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
        content="c3c05d1df1f085286a52dd9500efe9c291882026832e4341bc62752d8b2b5066",
        sources=(
            idx("https://ossci-datasets.s3.amazonaws.com/mnist"),
            idx("https://storage.googleapis.com/cvdf-datasets/mnist"),
        ),
        shape=(28, 28),
        splits=(("train", 0, 60000), ("test", 60000, 70000)),
    ),
    DatasetInfo(
        name="naticusdroid",
        title="NATICUSdroid (Android permissions)",
        kind="table",
        rows=29332,
        columns=87,
        target="Result",
        classes=2,
        licence=CC_BY,
        citation=(
            "A. Mathur, NATICUSdroid (Android Permissions) Dataset, UCI, 2021, doi:10.24432/C5FS64"
        ),
        page="https://archive.ics.uci.edu/dataset/722/naticusdroid+android+permissions+dataset",
        filename="naticusdroid.parquet",
        size=155957,
        sha256="74d3ef9e09e07a62d30bd844ba90a9d048f89fefb24c169a973d15da292e2711",
        content="7384ac5000071b549f66c6654d4463ca43d354e92f1ee67ba8af095d47fd88ca",
        sources=(
            archive(
                "naticusdroid",
                f"{UCI}/722/naticusdroid+android+permissions+dataset.zip",
                "data.csv",
                checksums=(
                    Checksum(
                        "sha256", "5764687009af15605f46941902d6a1c4c1a07618dfefb94a0275edb4869780ba"
                    ),
                ),
            ),
        ),
        notes=(
            "Only 7395 of 29332 feature vectors are distinct: a random split puts equal rows "
            "into train and test, which flatters accuracy and membership inference.",
            "1 is malware.",
        ),
    ),
    DatasetInfo(
        name="nursery",
        title="Nursery",
        kind="table",
        rows=12960,
        columns=9,
        target="class",
        classes=5,
        licence=CC_BY,
        citation="V. Rajkovic, Nursery, UCI, 1989, doi:10.24432/C5P88W",
        page="https://archive.ics.uci.edu/dataset/76/nursery",
        filename="nursery.parquet",
        size=3514,
        sha256="3bd8f9f62e0a1ec7448d899dd4c71bc39036b6c9868d0735c3333ef1e3dcfa7f",
        content="c3d5b129a45143398c3fb024eef90754af081436d8a4565133420b680e30423b",
        sources=(archive("nursery", f"{UCI}/76/nursery.zip", "nursery.data"),),
        notes=(
            "The table lists every combination of the attributes once: it is a rule, not a sample.",
            "Two of 12960 records are of class recommend.",
        ),
    ),
    DatasetInfo(
        name="snli_dev_test",
        title="SNLI, development and test pairs",
        kind="text",
        rows=19666,
        columns=4,
        target="label",
        classes=3,
        licence="CC BY-SA 4.0",
        citation=(
            "S. Bowman, G. Angeli, C. Potts, C. Manning, A large annotated corpus for learning "
            "natural language inference, EMNLP 2015; copy by Camburu et al. 2018 (e-SNLI)"
        ),
        page="https://nlp.stanford.edu/projects/snli/",
        filename="snli_dev_test.parquet",
        size=408060,
        sha256="c424d6424e0fd7db6b641eecd6635209420917b8774d969df33735469c74f230",
        content="ee0fea1fd1a38eb0ca8a3f6000488aa23795ae3887ecb5c7d312395c11c7c019",
        sources=(
            Source(
                "snli",
                tuple(
                    RemoteFile(
                        f"{GITHUB}/OanaMariaCamburu/e-SNLI/"
                        f"7b585a3f077fdea899780eb0473940522ae44a2e/dataset/eSNLI/{stem}.{part}"
                    )
                    for part in ("dev", "test")
                    for stem in ("s1", "s2", "labels")
                ),
            ),
        ),
        notes=(
            "Sentences are tokenised (a blank before punctuation); pairs without a gold label "
            "and the 550152 training pairs are not in it.",
        ),
    ),
    DatasetInfo(
        name="sst2",
        title="Stanford Sentiment Treebank, two classes",
        kind="text",
        rows=70042,
        columns=3,
        target="label",
        classes=2,
        licence="none stated",
        citation=(
            "R. Socher et al., Recursive deep models for semantic compositionality over a "
            "sentiment treebank, EMNLP 2013; binary task as in GLUE (Wang et al. 2019)"
        ),
        page="https://nlp.stanford.edu/sentiment/",
        filename="sst2.parquet",
        size=1071617,
        sha256="3c743f591fc77ff227121d624089a037ae6718494b941662dcde7acae4109323",
        content="e35e5c6f16326c93777e7b9a388dc536a0e15bcfbd84288a90312e37c9d36e94",
        sources=(
            Source(
                "sst2",
                (
                    RemoteFile(f"{_SST2}/train.tsv"),
                    RemoteFile(
                        f"{GITHUB}/forest-snow/alps/"
                        "3c7ef2c98249fc975a897b27f275695f97d5b7a9/data/SST-2/test.tsv",
                        name="dev.tsv",
                    ),
                    RemoteFile(f"{_SST2}/test.tsv"),
                ),
            ),
        ),
        notes=(
            "Training records are phrases of the same sentences, so one review is many records: "
            "record-level privacy is not review-level privacy.",
            "The test part keeps the treebank's brackets (-lrb-), the development part does not.",
            "The test labels are those of the treebank (GLUE hides them).",
        ),
    ),
    DatasetInfo(
        name="students_dropout",
        title="Predict Students' Dropout and Academic Success",
        kind="table",
        rows=4424,
        columns=37,
        target="Target",
        classes=3,
        licence=CC_BY,
        citation=(
            "V. Realinho, M. Vieira Martins, J. Machado, L. Baptista, Predict Students' Dropout "
            "and Academic Success, UCI, 2021, doi:10.24432/C5MC89"
        ),
        page="https://archive.ics.uci.edu/dataset/697/predict+students+dropout+and+academic+success",
        filename="students_dropout.parquet",
        size=85866,
        sha256="fb883639866b47fee279dc85dceb52d23e39a348da01747185fc135c01bc7b2e",
        content="47baae499a070db9170aa397681600a1d2c49abf388824fa31dd636aafdc6e97",
        sources=(
            archive(
                "students",
                f"{UCI}/697/predict+students+dropout+and+academic+success.zip",
                "data.csv",
            ),
        ),
        notes=(
            "Nacionality is spelled so in the source; the tab behind "
            "Daytime/evening attendance was removed.",
        ),
    ),
    DatasetInfo(
        name="wine_quality_red",
        title="Wine Quality, red",
        kind="table",
        rows=1599,
        columns=12,
        target="quality",
        classes=11,
        licence=CC_BY,
        citation=_WINE_CITATION,
        page="https://archive.ics.uci.edu/dataset/186/wine+quality",
        filename="wine_quality_red.parquet",
        size=25914,
        sha256="cce323c2ac3a252f316e13ba5389097db2a218e5a555d4dec2fbf18b61cd29c3",
        content="08055ebc2ba85d5c6e99a0abb0dce83c1cc53e4dd7c9d1037d859f781f7b62ae",
        sources=(
            archive(
                "wine",
                f"{UCI}/186/wine+quality.zip",
                "winequality-red.csv",
                checksums=(Checksum("md5", "2daeecee174368f8a33b82c8cccae3a5"),),
            ),
        ),
        notes=(_WINE_NOTE, "240 rows are duplicates."),
    ),
    DatasetInfo(
        name="wine_quality_white",
        title="Wine Quality, white",
        kind="table",
        rows=4898,
        columns=12,
        target="quality",
        classes=11,
        licence=CC_BY,
        citation=_WINE_CITATION,
        page="https://archive.ics.uci.edu/dataset/186/wine+quality",
        filename="wine_quality_white.parquet",
        size=62415,
        sha256="a04062f4f32d88c7fd57bc594da830e5716f221e23110c9b97f1f7fbc8db4f31",
        content="7cb439ab0b0b3775250b294c4769ddc50a94d422568a1fa8755fdd72c6cc2cef",
        sources=(
            archive(
                "wine",
                f"{UCI}/186/wine+quality.zip",
                "winequality-white.csv",
                checksums=(Checksum("md5", "5d9ff0f7f716dace19e3ab4578775fd7"),),
            ),
        ),
        notes=(_WINE_NOTE,),
    ),
)
