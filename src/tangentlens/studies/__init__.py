"""The experiments. A job makes one run from a plan; a study is data: which jobs, at which scale, for which claims.

A new job is a file with a plan, a function that makes the run and a section of the report, and a line in `JOBS`. A new
study is a file with its parts, and a line in `STUDIES`. Claims and their verdicts are in `claims/`.
"""

from tangentlens.report.sections import SECTIONS as COMMON
from tangentlens.studies.architectures import ARCHITECTURES
from tangentlens.studies.audit import AUDIT
from tangentlens.studies.claims.section import LEDGER
from tangentlens.studies.demo import DEMO
from tangentlens.studies.downstream import DOWNSTREAM
from tangentlens.studies.downstream_section import PROBES
from tangentlens.studies.finished_models import FINISHED_MODELS
from tangentlens.studies.frequency import FREQUENCY
from tangentlens.studies.frequency_section import FREQUENCIES
from tangentlens.studies.job import Job
from tangentlens.studies.learning_dynamics import LEARNING_DYNAMICS
from tangentlens.studies.profile import PROFILE
from tangentlens.studies.regularisers import REGULARISERS
from tangentlens.studies.shape_of_learning import SHAPE_OF_LEARNING
from tangentlens.studies.study import Study
from tangentlens.studies.sweep import SWEEP
from tangentlens.studies.tangent import TEST
from tangentlens.studies.train import TRAIN
from tangentlens.studies.visibility import VISIBILITY
from tangentlens.studies.warning_section import WARNINGS

JOBS: dict[str, Job] = {job.name: job for job in (TRAIN, PROFILE, TEST, AUDIT, VISIBILITY, SWEEP)}
STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        DEMO,
        LEARNING_DYNAMICS,
        SHAPE_OF_LEARNING,
        FINISHED_MODELS,
        REGULARISERS,
        ARCHITECTURES,
        FREQUENCY,
        DOWNSTREAM,
    )
}
# Everything that a report can say.
SECTIONS = (
    LEDGER,
    *COMMON,
    FREQUENCIES,
    PROBES,
    WARNINGS,
    *(job.section for job in JOBS.values() if job.section is not None),
)
