"""The configuration keys of the sandbox, as error messages name them."""

from slipstream.sandbox.setting_names import SettingNames

SETTING_NAMES = SettingNames(
    servers="verifier.workers",
    memory_mib="memory_mib of code_tests and of the tool python",
    require="verifier.isolation.require",
    packages="verifier.isolation.packages",
)
