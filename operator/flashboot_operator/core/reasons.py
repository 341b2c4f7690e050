"""Every reason that a condition or an Event can have; docs/reference/conditions.md says what to do about each.

The type checker refuses any other, and a test compares the two lists.
"""

from __future__ import annotations

from typing import Literal

from flashboot_agent.wire.problem import ProblemReason

Stage = Literal[
    "WaitingForNodes",
    "WaitingForVolumes",
    "AgentSilent",
    "Seeding",
    "WaitingForSeed",
    "Cloning",
    "LoadingImage",
    "Attaching",
    "EngineStarting",
    "Ready",
]
"""How far a pod is; all but the last are reasons of the condition Ready."""

Unsound = Literal["SourceDraining", "SourceAccused", "SourceNodeNotReady", "SourceQuarantined", "SourceSilent"]
"""Why a source was elected that is not sound: there is no better one. In this order, the worst last."""

SourceReason = Literal["OnlySealed", "IdleAndSealed", "ServingAndSealed"] | Unsound
"""Why a source was elected."""

NoSourceReason = Literal[
    "FedAcrossDomains", "NoneInReach", "LoadingImage", "Seeding", "WaitingForSeed", "NothingResident"
]
"""Why a domain has no source."""

StateReason = Literal[
    "FirstSeen",
    "AsExpected",
    "AllReplicasReady",
    "MinimumReplicasReady",
    "ScaledToZero",
    "Progressing",
    "RollingOut",
    "Seeding",
    "NoPods",
    "NothingResident",
    "TooFewReplicasReady",
    "NoReplicaReady",
    "Deleting",
    "ProgressDeadlineExceeded",
]
"""What is said of the whole, beside what is wrong."""

LostReason = Literal["CopiesExpired", "CopiesLost"]
"""Why nothing is resident of one without replicas, though `spec.residency` kept copies."""

TroubleReason = Literal[
    "RanksDiffer",
    "GroupDiffers",
    "AgentUnavailable",
    "NodeNotReady",
    "EngineSilent",
    "AgentVersionUnsupported",
    "ImagePullFailed",
    "ContainerNotCreated",
    "EngineCrashing",
    "PodUnschedulable",
    "MoreRanksThanDevices",
    "PodFailed",
    "PodCreationFailed",
    "PodClaimedTwice",
    "QuotaExceeded",
    "TemplateRejected",
    "DeploymentConflict",
    "NameTaken",
    "OperatorForbidden",
    "SpecNotUnderstood",
    "CustomResourceOutdated",
    "ReplicasContested",
]
"""What is wrong, beside what agents tell (wire/problem.py)."""

EventReason = Literal[
    "SeedElected",
    "SeedSealed",
    "ImageElected",
    "SourceElected",
    "SourceAtRisk",
    "SourceQuarantined",
    "QuarantineLifted",
    "AgentRestarted",
    "ArenaLost",
    "CloneStarted",
    "CloneSealed",
    "ImageLoaded",
    "ParentReplaced",
    "GroupRestarted",
    "GroupRemoved",
    "CopyAhead",
    "CopyEvicted",
    "CopiesExpired",
    "CopiesLost",
    "ReplicasReady",
    "RolloutStarted",
]
"""Of Events alone; each TroubleReason and ProgressDeadlineExceeded is one too."""

Wrong = TroubleReason | ProblemReason
ConditionReason = StateReason | Stage | SourceReason | LostReason | Wrong
