//! A thousand concurrent agents; prints latencies.

use std::time::Instant;

use futures::future::join_all;

use super::*;

const AGENTS: usize = 1000;
/// Streams per connection: a thousand connections may exceed the limit of file descriptors.
const STREAMS: usize = 8;

fn host(at: usize) -> String {
    format!("host-{at:04}")
}

/// Each host has three pods; one of them differs by version.
fn desired(version: usize) -> Desired {
    let hosts = (0..AGENTS).map(|at| {
        let identity = format!("{at}-{version}");
        let steady = |uid: &str| pod(&format!("{uid}-{at}"), b"steady");
        (host(at), pods([pod(&format!("u-{at}"), identity.as_bytes()), steady("v"), steady("w")]))
    });
    Desired { hosts: hosts.collect(), ..Desired::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_reaches_a_thousand_agents() {
    let mut service = TestService::new().await;
    let wanted = desired(0);
    service.desire(wanted.clone());
    let begin = Instant::now();
    let mut agents = Vec::new();
    for first in (0..AGENTS).step_by(STREAMS) {
        let client = service.client().await;
        let opening = (first..(first + STREAMS).min(AGENTS)).map(|at| {
            let (mut client, token) = (client.clone(), service.reviewer.agent(&host(at)));
            async move { Agent::connect(&mut client, &token, (1, 1)).await.unwrap() }
        });
        agents.extend(join_all(opening).await);
    }
    let arrivals = |agents: Vec<Agent>, wanted: &Desired| {
        let wanted = wanted.clone();
        let reading = agents.into_iter().enumerate().map(move |(at, mut agent)| {
            let pods = Arc::clone(&wanted.hosts[&host(at)]);
            tokio::spawn(async move {
                let updates = agent.until(&pods).await;
                (agent, updates, Instant::now())
            })
        });
        let reading: Vec<_> = reading.collect();
        async move { join_all(reading).await.into_iter().map(|read| read.expect("an agent")).collect::<Vec<_>>() }
    };
    let read = arrivals(agents, &wanted).await;
    let connected = begin.elapsed();
    assert!(read.iter().all(|(_, updates, _)| *updates == 1));
    service.reported("all agents connected", |reports| reports.hosts.len() == AGENTS).await;

    let wanted = desired(1);
    let agents = read.into_iter().map(|(agent, ..)| agent).collect();
    let reading = arrivals(agents, &wanted);
    let begin = Instant::now();
    service.desire(wanted.clone());
    let read = reading.await;
    assert!(read.iter().all(|(_, updates, _)| *updates == 1));
    let mut times: Vec<_> = read.iter().map(|(_, _, at)| at.duration_since(begin)).collect();
    times.sort_unstable();
    println!(
        "{AGENTS} agents: connected and configured in {connected:?}; a change of every host has reached half of them \
         after {:?}, 99 % after {:?}, all after {:?}",
        times[AGENTS / 2],
        times[AGENTS * 99 / 100],
        times[AGENTS - 1]
    );

    // A change of one host is sent to that host only.
    let mut wanted = wanted;
    wanted.hosts.insert(host(500), pods([pod("u-500", b"alone")]));
    let mut agents: Vec<_> = read.into_iter().map(|(agent, ..)| agent).collect();
    let begin = Instant::now();
    service.desire(wanted.clone());
    assert_eq!(agents[500].until(&wanted.hosts[&host(500)]).await, 1);
    println!("{AGENTS} agents: a change of one host has reached it after {:?}", begin.elapsed());
    // The generation of the other hosts' next update shows that they received none in between.
    service.desire(desired(2));
    for at in [0, 499, 501, 999] {
        let update = agents[at].next().await.unwrap();
        assert_eq!((update.generation, update.pods.len()), (3, 1), "host {at}");
    }
    assert_eq!(agents[500].next().await.unwrap().generation, 4);
}
