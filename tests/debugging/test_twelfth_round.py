"""What the twelfth round of bugs taught."""

from noisewise.debugging import check
from noisewise.debugging.mutants import with_bug


def test_a_step_that_nobody_moves_is_judged_and_no_error_of_the_finders_own():
    subject = with_bug("step-dropped-when-a-worker-has-nothing")
    findings = check(
        subject.train,
        subject.case.model,
        subject.case.loss,
        example=subject.case.example,
        effort="quick",
        tests=("preflight", "noise"),
        **subject.declared,
    )
    assert findings.verdict == "bug"
    assert "noise-depends-on-batch" in findings.bugs
