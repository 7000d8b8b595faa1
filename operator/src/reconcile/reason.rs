//! Why a condition is as it is, in words that a user can act on.

/// Reasons of conditions and Events, the one that explains most first: of several that apply, `Ready` shows the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The specification cannot be read by this build of the operator.
    SpecInvalid,
    /// No pod has the labels.
    NoPodsSelected,
    /// The pod has no container of that name.
    ContainerNotFound,
    /// The pod waits for a host.
    PodUnscheduled,
    /// No agent runs on the pod's host.
    AgentMissing,
    /// The agent of the pod's host was heard of once, but not lately.
    AgentSilent,
    /// The agent runs, but its host cannot record.
    HostCannotRecord,
    /// The agent did not say anything about the pod yet.
    WaitingForAgent,
    /// The pod has no port of that name.
    PortNotFound,
    /// The Secret's namespace is none that the operator may read Secrets of.
    SecretNamespaceNotAllowed,
    /// There is no such Secret.
    SecretNotFound,
    /// The Secret has no such key.
    SecretKeyNotFound,
    /// The API server does not let the operator read the Secret.
    SecretNotReadable,
    /// The Secret was not read yet.
    SecretPending,
    /// What the Secret holds is no identity.
    IdentityInvalid,
    /// The container does not run.
    WaitingForContainer,
    /// The node's process ends again and again.
    RestartLoop,
    /// The container runs, a process of that name was never seen.
    ProcessNotFound,
    /// The node's process ended.
    ProcessExited,
    /// The process is there, but cannot be recorded.
    CannotRecord,
    /// The agent found no usable identity.
    IdentityNotRead,
    /// The agent does not use the Secret's identity yet.
    IdentityPending,
    /// An older node has the pod.
    PodTaken,
    /// The resource asks for no recording.
    NetworkDisabled,
    /// All is as the resource asks.
    AsConfigured,
}

impl Reason {
    /// As it is written into conditions.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpecInvalid => "SpecInvalid",
            Self::NoPodsSelected => "NoPodsSelected",
            Self::ContainerNotFound => "ContainerNotFound",
            Self::PodUnscheduled => "PodUnscheduled",
            Self::AgentMissing => "AgentMissing",
            Self::AgentSilent => "AgentSilent",
            Self::HostCannotRecord => "HostCannotRecord",
            Self::WaitingForAgent => "WaitingForAgent",
            Self::PortNotFound => "PortNotFound",
            Self::SecretNamespaceNotAllowed => "SecretNamespaceNotAllowed",
            Self::SecretNotFound => "SecretNotFound",
            Self::SecretKeyNotFound => "SecretKeyNotFound",
            Self::SecretNotReadable => "SecretNotReadable",
            Self::SecretPending => "SecretPending",
            Self::IdentityInvalid => "IdentityInvalid",
            Self::WaitingForContainer => "WaitingForContainer",
            Self::RestartLoop => "RestartLoop",
            Self::ProcessNotFound => "ProcessNotFound",
            Self::ProcessExited => "ProcessExited",
            Self::CannotRecord => "CannotRecord",
            Self::IdentityNotRead => "IdentityNotRead",
            Self::IdentityPending => "IdentityPending",
            Self::PodTaken => "PodTaken",
            Self::NetworkDisabled => "NetworkDisabled",
            Self::AsConfigured => "AsConfigured",
        }
    }
}

/// A condition's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Truth {
    /// It does not hold.
    False,
    /// Nobody knows.
    Unknown,
    /// It holds.
    True,
}

impl Truth {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::False => "False",
            Self::Unknown => "Unknown",
            Self::True => "True",
        }
    }
}

/// A condition's status with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) truth: Truth,
    pub(super) reason: Reason,
    /// For people. Without counts and times: a message that changes is a write to the API server.
    pub(super) message: String,
}

impl Verdict {
    pub(super) fn new(truth: Truth, reason: Reason, message: impl Into<String>) -> Self {
        Self { truth, reason, message: message.into() }
    }

    pub(super) fn good() -> Self {
        Self::new(Truth::True, Reason::AsConfigured, "")
    }
}
