"""The experiments, declared as data: what to train or load, what to measure, and what a report says about it.

A new study is a file with a plan, a function that makes the run and a section of the report, and a line in `STUDIES`.
"""

from tangentlens.report.sections import SECTIONS as COMMON
from tangentlens.studies.audit import AUDIT
from tangentlens.studies.demo import DEMO
from tangentlens.studies.profile import PROFILE
from tangentlens.studies.study import Study
from tangentlens.studies.tangent import TEST
from tangentlens.studies.visibility import VISIBILITY

STUDIES: dict[str, Study] = {study.name: study for study in (DEMO, PROFILE, TEST, AUDIT, VISIBILITY)}
# Everything that a report can say.
SECTIONS = (*COMMON, *(study.section for study in STUDIES.values()))
