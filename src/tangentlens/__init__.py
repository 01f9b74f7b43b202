"""See how a language model's representation space takes shape while it learns."""

from tangentlens.alignment.chance import chance
from tangentlens.alignment.share import share
from tangentlens.alignment.tangent_test import tangent_test
from tangentlens.errors import InputError
from tangentlens.geometry.anisotropy import anisotropy
from tangentlens.geometry.dimension import intrinsic_dimension
from tangentlens.geometry.moments import Moments
from tangentlens.geometry.subspace import Subspace
from tangentlens.proxies.semi_nmf import SemiNMF

__all__ = [
    "InputError",
    "Moments",
    "SemiNMF",
    "Subspace",
    "anisotropy",
    "chance",
    "intrinsic_dimension",
    "share",
    "tangent_test",
]
