"""The one error that energy_flow raises for what its user can put right."""


class EnergyFlowError(Exception):
    """One sentence that names the file, option or setting at fault and says what to do."""
