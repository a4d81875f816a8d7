"""The faults: each loses a significant share of the accept length, or kills the server.

To add one, add a `Case` to the file of its kind: `eagletrace lab run --fault NAME` and the matrix take it from here.
"""

from eagletrace.lab.faults.case import Case
from eagletrace.lab.faults.compound import COMPOUND
from eagletrace.lab.faults.configuration import AUX_STATES, CONFIGURATION, NORMS, ROTARY, SHARING
from eagletrace.lab.faults.eagle1 import EAGLE1_FAULTS
from eagletrace.lab.faults.eagle31 import EAGLE31_FAULTS
from eagletrace.lab.faults.kimi import KIMI_FAULTS
from eagletrace.lab.faults.mtp import MTP_FAULTS
from eagletrace.lab.faults.other_targets import OTHER_TARGET_FAULTS
from eagletrace.lab.faults.running import CACHE, FEEDING, POSITIONS, ROUNDS, UPDATES
from eagletrace.lab.faults.standalone import STANDALONE_FAULTS
from eagletrace.lab.faults.training import TARGET, TRAINING
from eagletrace.lab.faults.weights import VOCABULARY, WEIGHTS

FAULTS: tuple[Case, ...] = (
    *WEIGHTS, *VOCABULARY, *CONFIGURATION, *AUX_STATES, *NORMS, *ROTARY, *SHARING, *TRAINING, *TARGET, *FEEDING,
    *POSITIONS, *CACHE, *ROUNDS, *UPDATES, *COMPOUND,
    *EAGLE1_FAULTS, *KIMI_FAULTS, *EAGLE31_FAULTS, *OTHER_TARGET_FAULTS,
    *MTP_FAULTS, *STANDALONE_FAULTS,
)  # fmt: skip
