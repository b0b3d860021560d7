import json

import pytest
from typer.testing import CliRunner

from noisewise import privacy
from noisewise.cli import app, main
from noisewise.cli.budget import default_delta

TRAINING = ["--batch-size", "256", "--records", "50000"]


def run(*arguments):
    return CliRunner().invoke(app, ["budget", *arguments])


def answer(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_it_tells_what_training_costs():
    found = answer("--noise", "1", "--epochs", "20", *TRAINING)
    assert found["steps"] == 3907
    assert found["delta"] == 1e-6
    assert found["epsilon"] == privacy.epsilon(
        noise_multiplier=1.0, sample_rate=256 / 50000, steps=3907, delta=1e-6
    )


def test_it_tells_how_much_noise_is_needed():
    found = answer("--epsilon", "3", "--epochs", "20", *TRAINING)
    assert 0.995 * 3 <= found["epsilon"] <= 3


def test_it_tells_how_long_training_may_last():
    found = answer("--epsilon", "3", "--noise", "1", *TRAINING)
    common = dict(noise_multiplier=1.0, sample_rate=256 / 50000, delta=1e-6)
    assert privacy.epsilon(steps=found["steps"], **common) <= 3
    assert privacy.epsilon(steps=found["steps"] + 1, **common) > 3


def test_a_table_for_people_and_a_picture(tmp_path):
    picture = tmp_path / "out.png"
    result = run("--noise", "2", "--steps", "50", *TRAINING, "--plot", str(picture))
    assert result.exit_code == 0
    assert "What does this training cost?" in result.output
    assert "noise multiplier" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_budget_too_small_for_one_step_says_so():
    result = run("--epsilon", "0.001", "--noise", "0.5", "--sample-rate", "1", "--delta", "1e-5")
    assert "Not even one step fits" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--sample-rate"),
        (["--noise", "1", *TRAINING], "exactly two"),
        (["--noise", "1", "--epsilon", "1", "--steps", "5", *TRAINING], "exactly two"),
        (["--noise", "0", "--steps", "5", *TRAINING], "noise_multiplier must be > 0"),
        (
            ["--noise", "1", "--steps", "5", "--sample-rate", "1.5", "--delta", "1e-5"],
            "sample_rate",
        ),
        (["--noise", "1", "--steps", "5", "--sample-rate", "0.1"], "--delta"),
        (["--noise", "1", "--epochs", "1", "--steps", "5", *TRAINING], "not both"),
        (["--noise", "1", "--epochs", "-1", *TRAINING], "--epochs"),
        (["--noise", "1", "--steps", "5", "--batch-size", "9", "--records", "5"], "--batch-size"),
        (["--noise", "1", "--steps", "5", *TRAINING, "--sample-rate", "0.1"], "not both"),
        (["--noise", "1", "--steps", "5", *TRAINING, "--relation", "swap"], "relation"),
        (["--noise", "1", "--steps", "5", *TRAINING, "--plot", "/nowhere/x.png"], "no folder"),
    ],
)
def test_wrong_questions_get_one_clear_sentence(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["noisewise", "budget", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert message in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(("records", "delta"), [(10, 1e-2), (11, 1e-3), (60_000, 1e-6), (1, 1e-1)])
def test_delta_is_a_power_of_ten_at_most_a_tenth_of_a_record(records, delta):
    assert default_delta(records) == delta <= 1 / (10 * records)


# -------------------------------------------------------------------------------------- units

PATIENTS = ["--steps", "300", *TRAINING, "--unit-rows", "8"]
PUBLIC = {"sample_rate": 256 / 50000, "steps": 300, "delta": 1e-6}


def test_it_tells_what_privacy_of_a_patient_costs_and_what_group_privacy_would_say():
    found = answer("--noise", "2", *PATIENTS)
    whole = privacy.epsilon(noise_multiplier=2.0, unit_rows=8, **PUBLIC)
    row = privacy.PoissonGaussian(2.0, 256 / 50000, 300)
    assert found["epsilon"] == whole
    assert found["unit_rows"] == 8
    assert found["group_bound"] == privacy.group_privacy_of(row, size=8, delta=1e-6)
    # Group privacy is a bound, and a bad one: the truth is below it, and far above one row's.
    assert privacy.epsilon_of(row, delta=1e-6) * 2 < whole < found["group_bound"]
    shown = run("--noise", "2", *PATIENTS).output
    assert "at most 8, each drawn by itself" in shown
    assert "the bad bound" in shown


def test_it_tells_the_noise_that_hides_a_patient():
    found = answer("--epsilon", "2", *PATIENTS)
    noise = found["noise_multiplier"]
    cost = privacy.epsilon(noise_multiplier=noise, unit_rows=8, **PUBLIC)
    assert 0.99 * 2 < cost <= 2
    assert noise > 1.5 * privacy.noise_multiplier(epsilon=2.0, **PUBLIC)
