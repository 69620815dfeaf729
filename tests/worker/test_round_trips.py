"""What a command costs its worker in commands to Redis.

Rules of docs/contract.md: R8.41.
"""

from testing.ledger import Ledger
from tests.worker.shop import Shop

COMMANDS = 100


def test_a_command_that_succeeds_takes_three_scripts_and_its_part_of_those_for_many(own_shop: Shop) -> None:
    """One looks whether the gateway has executed it, one claims it, one records it; reading and acknowledging are for many."""
    assert own_shop.work().stop() == 0  # its group is there
    with Ledger() as service:
        keys = [f"{own_shop.namespace}-{number}" for number in range(COMMANDS)]
        for key in keys:
            own_shop.accept(key)
        own_shop.redis.config_resetstat()
        own_shop.work(forward=service.url, constants={"commands.acknowledgements.SOON": 0.5})
        sent = own_shop.redis.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert all(own_shop.state(key) == "succeeded" for key in keys)
    assert 3 * COMMANDS <= sent <= 3.5 * COMMANDS
