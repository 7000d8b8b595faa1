//! The syslog server: UDP and TCP at each configured address. Nodes that share an address are distinguished by the application's
//! name, or by the host in the message or the address that it came from.

mod drops;
mod tcp;
mod udp;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use chainscope_logs::{Encoding, syslog::Header};
use chainscope_proto::v1::{Loss, Record, record::Kind};
use chainscope_spec::{Redaction, Syslog};
use tokio::{net::TcpListener, net::UdpSocket, sync::watch, task::JoinSet};

use super::{
    emit::{LogSink, Received},
    figures::Figures,
};
use crate::{Error, clock::realtime_ns, config::NodeConfig};

/// The sockets of an address, and the nodes whose messages arrive there.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    rules: Vec<Rule>,
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
}

/// Messages of one node.
#[derive(Debug)]
struct Rule {
    node: Arc<str>,
    app: Option<String>,
    host: Option<String>,
    redact: Redaction,
}

/// Binds the sockets of all nodes.
pub(super) fn bind(nodes: &[NodeConfig]) -> Result<Vec<Server>, Error> {
    let mut servers: Vec<Server> = Vec::new();
    for node in nodes {
        let Some(logs) = &node.logs else { continue };
        let Some(Syslog { listen, app, host }) = logs.sources.syslog.clone() else { continue };
        let rule = Rule { node: node.name.as_str().into(), app, host, redact: logs.redact.clone() };
        match servers.iter_mut().find(|server| server.address == listen) {
            Some(server) => server.rules.push(rule),
            None => servers.push(Server::bind(listen, rule)?),
        }
    }
    Ok(servers)
}

impl Server {
    #[cfg(test)]
    pub(super) fn udp(&self) -> &std::net::UdpSocket {
        &self.udp
    }

    fn bind(address: SocketAddr, rule: Rule) -> Result<Self, Error> {
        let refused = |source| Error::Syslog { address, source };
        let udp = udp::bind(address).map_err(refused)?;
        let tcp = std::net::TcpListener::bind(address).map_err(refused)?;
        tcp.set_nonblocking(true).map_err(refused)?;
        Ok(Self { address, rules: vec![rule], udp, tcp })
    }
}

/// Serves until `stop` is true, and reads what has arrived by then.
pub(super) async fn serve<S: LogSink>(
    servers: Vec<Server>,
    sink: S,
    figures: Arc<Figures>,
    stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    for Server { address, rules, udp, tcp } in servers {
        let intake = Arc::new(Intake { address, rules, sink: sink.clone(), figures: Arc::clone(&figures) });
        // Fails only outside of a runtime.
        let (Ok(udp), Ok(tcp)) = (UdpSocket::from_std(udp), TcpListener::from_std(tcp)) else { continue };
        tasks.spawn(udp::receive(udp, Arc::clone(&intake), stop.clone()));
        tasks.spawn(tcp::accept(tcp, intake, stop.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

/// What messages of one address go through.
struct Intake<S> {
    address: SocketAddr,
    rules: Vec<Rule>,
    sink: S,
    figures: Arc<Figures>,
}

impl<S: LogSink> Intake<S> {
    /// Records a message, or counts it.
    fn take(&self, message: &[u8], from: IpAddr) {
        let received_ns = realtime_ns();
        let message = message.strip_suffix(b"\n").unwrap_or(message);
        let rule = match self.find(message, from, received_ns) {
            Ok(rule) => rule,
            Err(reason) => return self.figures.unmatched(self.address, reason),
        };
        let received = Received {
            raw: message.to_vec(),
            encoding: Encoding::Syslog,
            source: "syslog",
            target: "",
            written_ns: None,
            received_ns,
            position: None,
        };
        let mut bytes = 0;
        let mut is_recorded = true;
        for record in received.records(&rule.redact) {
            bytes += if let Some(Kind::LogMessage(message)) = &record.kind { message.raw.len() } else { 0 };
            // The stream counts what has no space.
            is_recorded &= self.sink.push(&rule.node, record);
        }
        if is_recorded {
            self.figures.recorded(&rule.node, "syslog", bytes);
        }
    }

    /// The node that a message is of. The error is why there is none.
    fn find(&self, message: &[u8], from: IpAddr, received_ns: i64) -> Result<&Rule, &'static str> {
        if let [rule @ Rule { app: None, host: None, .. }] = self.rules.as_slice() {
            return Ok(rule);
        }
        let text = String::from_utf8_lossy(message);
        let header = Header::parse(&text, received_ns);
        let from = from.to_canonical();
        let is_host = |host: &str| header.host == Some(host) || host.parse() == Ok(from);
        let of_app = |rule: &&Rule| rule.app.as_deref().is_none_or(|app| header.app == Some(app));
        let of_host = |rule: &&Rule| rule.host.as_deref().is_none_or(is_host);
        match self.rules.iter().find(|rule| of_app(rule) && of_host(rule)) {
            Some(rule) => Ok(rule),
            None if header.level.is_none() => Err("no header"),
            None if !self.rules.iter().any(|rule| of_app(&rule)) => Err("unknown application"),
            None => Err("unknown host"),
        }
    }

    /// Records datagrams that the kernel dropped.
    fn lost(&self, datagrams: u64, from_ns: i64) {
        self.figures.kernel_dropped(self.address, datagrams);
        let to_ns = realtime_ns();
        // Of several nodes it is not known whose they were.
        let is_shared = self.rules.len() > 1;
        for rule in &self.rules {
            let loss = Loss {
                stage: "syslog".to_owned(),
                reason: "receive buffer full".to_owned(),
                records: if is_shared { 0 } else { datagrams },
                from_ns,
                to_ns,
                amount_unknown: is_shared,
                ..Loss::default()
            };
            self.sink.push(&rule.node, Record { time_ns: to_ns, target: String::new(), kind: Some(Kind::Loss(loss)) });
        }
    }
}
