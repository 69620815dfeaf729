"""Several Redis servers that belong together: a master with a replica under Sentinel, and a cluster."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis
import trustme

from testing import waiting
from testing.servers import RedisServer, free_port

SETTLED_WITHIN = 60.0
"""Seconds for servers to agree with each other; generous, since a busy machine delays their heartbeats."""
SLOTS = 16384


def wait_until(condition: Callable[[], object], what: str) -> None:
    """As `waiting.wait_until`; a server that can't be reached while it is asked counts as "not yet"."""
    waiting.wait_until(condition, what, SETTLED_WITHIN, not_yet=(redis.RedisError,))


class _Group:
    """Servers that are started and cleared away together. A context manager."""

    def __init__(self, *, tls: bool = False) -> None:
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []
        self._authority = trustme.CA() if tls else None

    def _url(self, kind: str, rest: str) -> str:
        """The group's URL, with what clients must know of its encryption."""
        if self._authority is None:
            return f"redis+{kind}://{rest}"
        return f"rediss+{kind}://{rest}?ssl_ca_certs={self.servers[0].ca_path}"

    def _server(self, **config: str) -> RedisServer:
        return self._add(RedisServer("tls" if self._authority else "tcp", config=config, authority=self._authority))

    def _add(self, server: RedisServer) -> RedisServer:
        return self._stack.enter_context(server)

    def set_up(self) -> None:
        """Start the servers and wait until they work together."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with self._stack:
            self.set_up()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class SentinelGroup(_Group):
    """A master, its ``replicas``, and one Sentinel, whose word is enough. ``url`` names a dead Sentinel before it.

    A master that does not answer for ``down_after`` seconds is replaced.
    """

    SERVICE = "records"

    def __init__(
        self, *, down_after: float = 30.0, replicas: int = 1, config: dict[str, str] | None = None, tls: bool = False
    ) -> None:
        super().__init__(tls=tls)
        self._down_after = round(down_after * 1000)
        self._count = 1 + replicas
        self._config = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **(config or {})}
        if tls:
            self._config["tls-replication"] = "yes"

    def set_up(self) -> None:
        for number in range(self._count):
            follow = {"replicaof": f"127.0.0.1 {self.servers[0].port}"} if number else {}
            self.servers.append(self._server(**self._config, **follow))
        self.sentinel = self._add(RedisServer("sentinel", authority=self._authority))
        self.url = self._url("sentinel", f"127.0.0.1:{free_port()},127.0.0.1:{self.sentinel.port}/{self.SERVICE}")
        self.sentinel.command("SENTINEL", "MONITOR", self.SERVICE, "127.0.0.1", self.servers[0].port, 1)
        for option, value in (("down-after-milliseconds", self._down_after), ("failover-timeout", 6000)):
            self.sentinel.command("SENTINEL", "SET", self.SERVICE, option, value)
        wait_until(self.is_ready, "Sentinel knows all replicas")

    def is_ready(self) -> bool:
        """Whether all servers but one are in step with the master, and Sentinel knows them."""
        known = self.sentinel.command("SENTINEL", "REPLICAS", self.SERVICE)
        healthy = [each for each in known if _fields(each)["flags"] == "slave"]
        return len(healthy) == self._count - 1 and self.in_step(self._count - 1)

    def in_step(self, replicas: int) -> bool:
        """Whether the master has as many replicas online as that."""
        replication = self.master.command("INFO", "replication")
        online = [each for name, each in replication.items() if name.startswith("slave") and each["state"] == "online"]
        return replication["role"] == "master" and len(online) == replicas

    @property
    def master(self) -> RedisServer:
        """Whom Sentinel calls the master."""
        _, port = self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def fail_over(self) -> None:
        """Have Sentinel demote the master, which lives, and wait until another one has taken over."""
        old = self.master
        # After a while in which nothing moved, Sentinel may hold no replica to be good enough, until it has asked again.
        wait_until(
            lambda: self.master is not old or self.sentinel.command("SENTINEL", "FAILOVER", self.SERVICE),
            "Sentinel begins",
        )
        self.wait_for_another_master(old)

    def wait_for_another_master(self, old: RedisServer) -> None:
        """Return when Sentinel names another master than ``old``, and that is one."""
        wait_until(
            lambda: self.master is not old and self.master.command("ROLE")[0] == b"master",
            "another server is the master",
        )

    def command(self, *arguments: str | bytes | int | float) -> Any:
        """Run one command on the master."""
        return self.master.command(*arguments)

    def key(self, name: str) -> str:
        """A key that no other test uses."""
        return self.servers[0].key(name)


class ClusterGroup(_Group):
    """Three masters and ``replicas`` replicas of the first. ``url`` names a dead node, then the last master alone."""

    def __init__(
        self, *, replicas: int = 0, node_timeout: float = 30.0, config: dict[str, str] | None = None, tls: bool = False
    ) -> None:
        super().__init__(tls=tls)
        self._replicas = replicas
        self._config = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(round(node_timeout * 1000)),
            "cluster-replica-validity-factor": "0",
            "cluster-require-full-coverage": "no",
            "repl-diskless-sync-delay": "0",
            **({"tls-cluster": "yes", "tls-replication": "yes"} if tls else {}),
            **(config or {}),
        }
        self.ids: list[str] = []

    def set_up(self) -> None:
        buses = [free_port() for _ in range(3 + self._replicas)]
        for bus in buses:
            self.servers.append(self._server(**self._config, **{"cluster-port": str(bus)}))
        self.ids = [server.command("CLUSTER", "MYID").decode() for server in self.servers]
        first = self.servers[0]
        for number, (server, bus) in enumerate(zip(self.servers, buses, strict=True)):
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if server is not first:
                first.command("CLUSTER", "MEET", "127.0.0.1", server.port, bus)
        bounds = [SLOTS * number // 3 for number in range(4)]
        for server, low, high in zip(self.servers[:3], bounds, bounds[1:], strict=False):
            server.command("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
        wait_until(lambda: all(len(_nodes(server)) == len(self.servers) for server in self.servers), "they have met")
        for replica in self.servers[3:]:
            replica.command("CLUSTER", "REPLICATE", self.ids[0])
        wait_until(self._agree, "the cluster is up")
        self.url = self._url("cluster", f"127.0.0.1:{free_port()},127.0.0.1:{self.servers[2].port}")

    def _agree(self) -> bool:
        infos = [server.command("CLUSTER", "INFO") for server in self.servers]
        replicas = int(self.servers[0].command("INFO", "replication")["connected_slaves"])
        return replicas == self._replicas and all(
            b"cluster_state:ok" in info and b"slots_assigned:16384" in info for info in map(_bytes, infos)
        )

    def holder(self, key: str) -> int:
        """The number of the master that the last master believes to own the slot of ``key``."""
        slot = self.slot(key)
        port = self._owner(2, slot)
        if port is None:
            raise RuntimeError(f"nobody owns slot {slot}")
        return [server.port for server in self.servers].index(port)

    def slot(self, key: str) -> int:
        """The slot of ``key``, as a server computes it."""
        return int(self.servers[2].command("CLUSTER", "KEYSLOT", key))

    def command(self, *arguments: str | bytes | int | float) -> Any:
        """Run one command on the node that holds its key, which is the first argument after the name."""
        return self.servers[self.holder(str(arguments[1]))].command(*arguments)

    def key(self, name: str, on: int | None = None) -> str:
        """A key that no other test uses; on the master of that number, if given, in a slot that holds no key of theirs."""
        while True:
            key = f"test:{os.urandom(6).hex()}:{name}"
            if on is None or (self.holder(key) == on and self._is_empty(self.slot(key), on)):
                return key

    def _is_empty(self, slot: int, on: int) -> bool:
        """Who moves a slot that others have keys in counts theirs, too, and can't give it away while one is left."""
        return int(self.servers[on].command("CLUSTER", "COUNTKEYSINSLOT", slot)) == 0

    def keys(self, name: str, count: int, on: int) -> list[str]:
        """So many keys that no other test uses, each in a slot of its own, so that their slots can be moved one by one."""
        by_slot: dict[int, str] = {}
        while len(by_slot) < count:
            key = self.key(f"{name}{len(by_slot)}", on=on)
            by_slot.setdefault(self.slot(key), key)
        return list(by_slot.values())

    # -- moving a slot, step by step as redis-cli does

    def begin_move(self, slot: int, source: int, target: int) -> None:
        """From now on new keys of ``slot`` go to ``target``, and those at ``source`` stay until they are moved."""
        self.servers[target].command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.ids[source])
        self.servers[source].command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.ids[target])

    def move_keys(self, slot: int, source: int, target: int, most: int = 1000) -> int:
        """Move up to so many keys of ``slot``; how many there were."""
        keys = self.servers[source].command("CLUSTER", "GETKEYSINSLOT", slot, most)
        if keys:
            self.servers[source].command("MIGRATE", "127.0.0.1", self.servers[target].port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end_move(self, slot: int, source: int, target: int) -> None:
        """``target`` owns ``slot``, and everybody is told.

        It takes a new epoch for that, the highest that it knows of. One that had not yet heard of the source's would take
        none above it, and a heartbeat of the source, still on its way, would give the slot back to a node without it.
        """
        wait_until(lambda: self._knows_all_epochs(target), "the target has heard of every node's epoch")
        order = (target, source, *(other for other in range(3) if other not in (source, target)))
        for number in order:
            self._give(number, slot, target)
        wait_until(lambda: self._all_know(slot, target, order), f"all know that slot {slot} has moved")

    def _give(self, number: int, slot: int, target: int) -> None:
        self.servers[number].command("CLUSTER", "SETSLOT", slot, "NODE", self.ids[target])

    def _all_know(self, slot: int, target: int, order: tuple[int, ...]) -> bool:
        """Whether that is so, and stays so.

        A heartbeat that is still on its way undoes it at any node that knows of no epoch of the target's above the sender's.
        """
        epochs = [self._epoch(number, number) for number in range(3)]
        if epochs.index(max(epochs)) != target or epochs.count(max(epochs)) > 1:
            self.servers[target].command("CLUSTER", "BUMPEPOCH")
            return False
        astray = [number for number in order if self._owner(number, slot) != self.servers[target].port]
        for number in astray:
            self._give(number, slot, target)
        return not astray and all(self._epoch(number, target) == epochs[target] for number in order)

    def _epoch(self, number: int, of: int) -> int:
        """The epoch of the configuration of node ``of``, as node ``number`` knows it."""
        nodes = self.servers[number].command("CLUSTER", "NODES")
        if isinstance(nodes, dict):
            return next(int(node["epoch"]) for node in nodes.values() if node["node_id"] == self.ids[of])
        return next(int(line.split()[6]) for line in nodes.decode().splitlines() if line.startswith(self.ids[of]))

    def _owner(self, number: int, slot: int) -> int | None:
        """The port of the master that node ``number`` believes to own ``slot``."""
        for low, high, master, *_ in self.servers[number].command("CLUSTER", "SLOTS"):
            if low <= slot <= high:
                return int(master[1])
        return None

    def _knows_all_epochs(self, number: int) -> bool:
        found = [_bytes(server.command("CLUSTER", "INFO")) for server in self.servers[:3]]
        return _number(b"cluster_current_epoch", found[number]) >= max(
            _number(b"cluster_my_epoch", info) for info in found
        )

    def move(self, slot: int, source: int, target: int) -> None:
        """All of it at once."""
        self.begin_move(slot, source, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, source, target)


def _fields(reply: Any) -> dict[str, str]:
    """A reply that lists names and values in turn, which newer versions of redis-py make a mapping of."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs}


def _nodes(server: RedisServer) -> list[str]:
    nodes = server.command("CLUSTER", "NODES")
    lines = nodes if isinstance(nodes, dict) else nodes.decode().splitlines()
    return [str(line) for line in lines if "handshake" not in str(line)]


def _number(name: bytes, info: bytes) -> int:
    return int(next(line for line in info.splitlines() if line.startswith(name + b":")).partition(b":")[2])


def _bytes(reply: Any) -> bytes:
    """redis-py parses some replies, depending on its version."""
    if isinstance(reply, dict):
        return "\n".join(f"{name}:{value}" for name, value in reply.items()).encode()
    return bytes(reply)
