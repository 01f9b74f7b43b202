"""What a report says about any run, one file per subject. A new subject is a file and a line in `SECTIONS`."""

from tangentlens.report.sections.active import ACTIVE
from tangentlens.report.sections.architectures import ABLATIONS
from tangentlens.report.sections.comparison import COMPARISON
from tangentlens.report.sections.concepts import CONCEPTS
from tangentlens.report.sections.frequency import FREQUENCY
from tangentlens.report.sections.geometry import GEOMETRY
from tangentlens.report.sections.maps import MAPS
from tangentlens.report.sections.massive import MASSIVE
from tangentlens.report.sections.movement import MOVED
from tangentlens.report.sections.shares import SHARES
from tangentlens.report.sections.training import TRAINING
from tangentlens.report.sections.treatments import TREATMENTS

SECTIONS = (
    SHARES,
    GEOMETRY,
    MAPS,
    FREQUENCY,
    CONCEPTS,
    ACTIVE,
    MOVED,
    MASSIVE,
    COMPARISON,
    TREATMENTS,
    ABLATIONS,
    TRAINING,
)
