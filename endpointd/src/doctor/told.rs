//! Judgement of what the running daemon sees of this host, against what the allocator was told.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use ratewright_io::admin::AdminAddress;
use serde::Deserialize;

use super::{Finding, PATIENCE, ok, warn};
use crate::telemetry::access_figures::AccessFigures;

/// Part of the told line rate, in hundredths, below which an interface's speed is less,
const SLOW_PERCENT: u64 = 95;
/// and above which it is more;
const FAST_PERCENT: u64 = 110;
/// part of a told capacity above which a link carries more,
const ABOVE_PERCENT: u64 = 105;
/// and part of a told capacity below which a congested link carries less.
const SHORT_PERCENT: u64 = 88;

/// Part of `/status` that is judged here.
#[derive(Debug, Deserialize)]
struct Status {
    telemetry: Telemetry,
}

#[derive(Debug, Deserialize)]
struct Telemetry {
    active: bool,
    access: AccessFigures,
}

/// Asks the daemon at `admin`, and says so if nobody can be asked.
pub(super) fn findings(admin: Option<&AdminAddress>) -> Vec<Finding> {
    let Some(admin) = admin else {
        return vec![ok(
            "links",
            "unknown: the configuration has no `admin` address at which to ask the daemon",
        )];
    };
    let Ok(body) = get_status(admin) else {
        return vec![ok(
            "links",
            format!("unknown: no daemon answers at {admin}"),
        )];
    };
    match serde_json::from_str::<Status>(&body) {
        Ok(status) if status.telemetry.active => judge(&status.telemetry.access),
        Ok(_) => vec![ok("links", "unknown: no allocator asks for telemetry")],
        // A daemon of another version.
        Err(_) => vec![warn("links", "the daemon that runs does not tell of them")],
    }
}

fn get_status(admin: &AdminAddress) -> io::Result<String> {
    match admin {
        AdminAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            exchange(stream)
        }
        AdminAddress::Tcp(address) | AdminAddress::WritableTcp(address) => {
            let stream = TcpStream::connect_timeout(address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            exchange(stream)
        }
    }
}

/// Asks for `/status` by HTTP/1.0, so that the answer ends with the connection.
fn exchange(mut stream: impl Read + Write) -> io::Result<String> {
    stream.write_all(b"GET /status HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .ok_or(io::ErrorKind::InvalidData.into())
}

/// Names the traffic without rates on the link from this host (0) or to it (1).
fn traffic_of_others(access: &AccessFigures, link: usize) -> Option<String> {
    let strangers = match access.strangers[link] {
        0 => None,
        1 => Some("an address that no host of the topology has".to_owned()),
        count => Some(format!(
            "{count} addresses that no host of the topology has"
        )),
    };
    let udp = access.udp[link].then(|| "UDP".to_owned());
    let all: Vec<String> = strangers.into_iter().chain(udp).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

fn judge(access: &AccessFigures) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gbps = |bps: u64| bps as f64 / 1e9;
    if access.no_address {
        findings.push(warn(
            "address",
            "no interface has an address of this host in the topology: flows to it have no rate; correct `prefixes` there",
        ));
    }
    if access.in_prefixes_of > 0 {
        findings.push(warn(
            "address",
            format!(
                "addresses of this host are in prefixes of {} other hosts of the topology: flows to them count for those; correct `prefixes` there",
                access.in_prefixes_of
            ),
        ));
    }
    if access.flows_beyond_table {
        findings.push(warn(
            "flows",
            "connections have no rate, because the table is full: raise `pacing.max_flows`, and `limits.max_flows_per_session` of the allocator",
        ));
    }
    if access.other_congestion_control {
        findings.push(warn(
            "tcp",
            "the default congestion control was changed under the daemon; restart the daemon if that is meant",
        ));
    }
    for (link, name) in ["from", "to"].into_iter().enumerate() {
        let (told_bps, carried_bps) = (access.told_bps[link], access.carried_bps[link]);
        if told_bps == 0 {
            continue;
        }
        if let Some(others) = traffic_of_others(access, link) {
            findings.push(warn(
                "links",
                format!(
                    "others' traffic is on the link {name} this host: of {others}; TCP divides the link with it"
                ),
            ));
        }
        let percent = |bps: u64, of_bps: u64| u128::from(bps) * 100 / u128::from(of_bps);
        let speed_bps = access.speed_bps;
        // An earlier allocator tells no line rate.
        let line_rate_bps = match access.line_rate_bps[link] {
            0 => told_bps,
            line_rate_bps => line_rate_bps,
        };
        let speed_percent = percent(speed_bps, line_rate_bps);
        let told = |bps: u64| {
            format!(
                "the allocator was told {:.2} Gbit/s of the link {name} this host",
                gbps(bps)
            )
        };
        if speed_bps > 0 && speed_percent < u128::from(SLOW_PERCENT) {
            let (told, speed) = (told(line_rate_bps), gbps(speed_bps));
            findings.push(warn(
                "links",
                format!("{told}, and the interface has {speed:.2}"),
            ));
        } else if speed_percent > u128::from(FAST_PERCENT)
            || percent(carried_bps, told_bps) > u128::from(ABOVE_PERCENT)
        {
            let (told, more) = (told(line_rate_bps), gbps(speed_bps.max(carried_bps)));
            findings.push(warn("links", format!("{told}, and it has {more:.2}")));
        } else if name == "from"
            && access.congested_hosts > 0
            && percent(carried_bps, told_bps) < u128::from(SHORT_PERCENT)
        {
            let told = told(told_bps);
            findings.push(warn(
                "links",
                format!(
                    "{told}, it carries {:.2}, and flows to {} hosts meet congestion: `ratewright status` names the link that carries less",
                    gbps(carried_bps),
                    access.congested_hosts
                ),
            ));
        }
    }
    if findings.is_empty() {
        findings.push(ok(
            "links",
            "as the allocator was told, as far as this host sees",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    const GBIT: u64 = 1_000_000_000;

    #[test]
    fn links_are_judged_by_their_interface_and_by_congestion() {
        let right = AccessFigures {
            told_bps: [10 * GBIT; 2],
            carried_bps: [5 * GBIT; 2],
            speed_bps: 10 * GBIT,
            ..AccessFigures::default()
        };
        let verdicts = |access: &AccessFigures| -> Vec<&str> {
            let findings = judge(access);
            (findings.iter())
                .map(|found| {
                    if found.verdict == Verdict::Ok {
                        "ok"
                    } else {
                        found.subject
                    }
                })
                .collect()
        };
        for (access, expected) in [
            (right, &["ok"][..]),
            (
                AccessFigures {
                    speed_bps: 0,
                    ..right
                },
                &["ok"],
            ),
            (
                AccessFigures {
                    speed_bps: GBIT,
                    ..right
                },
                &["links", "links"],
            ),
            (
                AccessFigures {
                    speed_bps: 25 * GBIT,
                    ..right
                },
                &["links", "links"],
            ),
            // Framing takes a tenth of the line: the speed is that of the line.
            (
                AccessFigures {
                    told_bps: [9 * GBIT; 2],
                    line_rate_bps: [10 * GBIT; 2],
                    ..right
                },
                &["ok"],
            ),
            (
                AccessFigures {
                    told_bps: [9 * GBIT; 2],
                    line_rate_bps: [10 * GBIT; 2],
                    speed_bps: 9 * GBIT,
                    ..right
                },
                &["links", "links"],
            ),
            (
                AccessFigures {
                    carried_bps: [5 * GBIT, 12 * GBIT],
                    ..right
                },
                &["links"],
            ),
            (
                AccessFigures {
                    congested_hosts: 2,
                    ..right
                },
                &["links"],
            ),
            (
                AccessFigures {
                    strangers: [0, 2],
                    ..right
                },
                &["links"],
            ),
            (
                AccessFigures {
                    udp: [true, false],
                    ..right
                },
                &["links"],
            ),
            (
                AccessFigures {
                    no_address: true,
                    ..right
                },
                &["address"],
            ),
            (
                AccessFigures {
                    in_prefixes_of: 1,
                    ..right
                },
                &["address"],
            ),
            (
                AccessFigures {
                    flows_beyond_table: true,
                    ..right
                },
                &["flows"],
            ),
            (
                AccessFigures {
                    other_congestion_control: true,
                    ..right
                },
                &["tcp"],
            ),
        ] {
            assert_eq!(verdicts(&access), expected, "{access:?}");
        }
    }

    #[test]
    fn others_traffic_is_named_by_what_it_is() {
        let access = AccessFigures {
            strangers: [1, 12],
            udp: [true, false],
            ..AccessFigures::default()
        };
        let from = "an address that no host of the topology has and UDP";
        assert_eq!(traffic_of_others(&access, 0).as_deref(), Some(from));
        let to = "12 addresses that no host of the topology has";
        assert_eq!(traffic_of_others(&access, 1).as_deref(), Some(to));
        assert_eq!(traffic_of_others(&AccessFigures::default(), 1), None);
    }

    /// A daemon of an earlier version tells less.
    #[test]
    fn figures_of_an_earlier_version_are_taken() {
        let status = r#"{"telemetry": {"active": true, "access": {
            "told_bps": [1, 2], "carried_bps": [3, 4], "speed_bps": 5, "congested_hosts": 6,
            "no_address": false, "other_congestion_control": true}}}"#;
        let status: Status = serde_json::from_str(status).expect("taken");
        let expected = AccessFigures {
            told_bps: [1, 2],
            carried_bps: [3, 4],
            speed_bps: 5,
            congested_hosts: 6,
            other_congestion_control: true,
            ..AccessFigures::default()
        };
        assert_eq!(status.telemetry.access, expected);
    }

    #[test]
    fn an_answer_is_what_follows_the_headers() {
        struct Answer(&'static [u8]);
        impl Read for Answer {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                self.0.read(into)
            }
        }
        impl Write for Answer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let body = exchange(Answer(b"HTTP/1.0 200 OK\r\na: b\r\n\r\n{}"));
        assert_eq!(body.expect("an answer"), "{}");
        assert!(exchange(Answer(b"nonsense")).is_err());
    }
}
