from iha.model.attention.diff import DifferentialAttention as DifferentialAttention
from iha.model.attention.iha import InterleavedHeadAttention as InterleavedHeadAttention
from iha.model.attention.mha import MultiHeadAttention as MultiHeadAttention
from iha.model.attention.mha import SlidingWindowAttention as SlidingWindowAttention
from iha.model.attention.paired_heads import PairedHeadsAttention as PairedHeadsAttention
from iha.model.attention.talking_heads import TalkingHeadsAttention as TalkingHeadsAttention
from iha.model.files import load_model as load_model
from iha.model.transformer import build_model as build_model

__version__: str
