//! `POLYPATH_FAULT`: faults to inject into packets while a program is tested.

use std::time::Duration;

use crate::settings::SettingError;

/// The longest delay, and the latest time of a cut.
const DELAY_MAX: Duration = Duration::from_secs(10);
const TIME_MAX: Duration = Duration::from_secs(86_400);

/// The share of packets that have a fault, in parts of 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share(pub u32);

impl Share {
    /// All packets.
    pub const ALL: u32 = 1_000_000_000;
}

/// An interface that carries nothing for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Its name.
    pub interface: String,
    /// The time at which it begins, from the moment when the program opened its first queue pair.
    pub at: Duration,
    /// How long it lasts; `None` means forever.
    pub lasts: Option<Duration>,
}

/// The faults. Each share applies to packets that are sent, and to packets that arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets that are lost.
    pub loss: Share,
    /// Packets that are duplicated.
    pub dup: Share,
    /// Packets that others overtake.
    pub reorder: Share,
    /// Packets that are damaged, so that their ICRC is wrong.
    pub corrupt: Share,
    /// How long each packet is delayed, up to 10 s.
    pub delay: Duration,
    /// The largest difference from the delay, up or down. It is not larger than the delay.
    pub jitter: Duration,
    /// The interface to whose packets all of this applies, except cuts; `None` for all interfaces.
    pub on: Option<String>,
    /// The interfaces that are cut, up to 16.
    pub cuts: Vec<Cut>,
    /// The seed of the random numbers; `None` for another one each time.
    pub seed: Option<u64>,
}

/// The largest number of cuts.
const CUTS_MAX: usize = 16;

impl Faults {
    /// Parses `POLYPATH_FAULT`: `key=value` joined by commas; `None` if it is empty.
    ///
    /// # Errors
    /// [`SettingError::Fault`] with the first item that is not understood.
    pub fn parse(text: &str) -> Result<Option<Self>, SettingError> {
        let mut faults = Self::default();
        let mut any = false;
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            faults
                .add(item)
                .map_err(|write| SettingError::Fault { item: item.to_owned(), write })?;
            any = true;
        }
        Ok(any.then_some(faults))
    }

    /// Parses one item. If it is invalid, returns what to write instead.
    fn add(&mut self, item: &str) -> Result<(), &'static str> {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let of_packets = |usage| share(value).ok_or(usage);
        match key {
            "loss" => self.loss = of_packets("loss=1%, a share of the packets from 0% to 100%")?,
            "dup" => self.dup = of_packets("dup=0.1%, a share of the packets from 0% to 100%")?,
            "reorder" => {
                self.reorder = of_packets("reorder=2%, a share of the packets from 0% to 100%")?;
            }
            "corrupt" => {
                self.corrupt = of_packets("corrupt=0.1%, a share of the packets from 0% to 100%")?;
            }
            "delay" => {
                let (delay, jitter) = value.split_once('~').unwrap_or((value, "0us"));
                let both = time(delay).zip(time(jitter));
                let fits =
                    |&(delay, jitter): &(Duration, Duration)| delay <= DELAY_MAX && jitter <= delay;
                (self.delay, self.jitter) = both.filter(fits).ok_or(
                    "delay=5ms or delay=5ms~1ms (give or take), in us, ms or s, up to 10s, the second \
                     not above the first",
                )?;
            }
            "cut" => {
                if self.cuts.len() == CUTS_MAX {
                    return Err("at most 16 cuts");
                }
                self.cuts.push(cut(value).ok_or(
                    "cut=eth0@10s (from 10 s on) or cut=eth0@10s+5s (for 5 s), times in us, ms or s",
                )?);
            }
            "on" if !value.is_empty() => self.on = Some(value.to_owned()),
            "on" => return Err("on=eth0, the name of an interface"),
            "seed" => self.seed = Some(value.parse().map_err(|_| "seed=7, a number below 2^64")?),
            _ => {
                return Err(
                    "loss=1%, dup=0.1%, reorder=2%, corrupt=0.1%, delay=5ms, cut=eth0@10s, \
                            on=eth0 or seed=7, joined by commas",
                );
            }
        }
        Ok(())
    }

    /// The problem with the interfaces that are named, given those that are present; `None` if
    /// there is none.
    #[must_use]
    pub fn interface_problem(&self, present: &[&str]) -> Option<String> {
        let named = self.cuts.iter().map(|cut| &cut.interface).chain(&self.on);
        let absent = named.filter(|name| !present.contains(&name.as_str())).min()?;
        Some(format!(
            "POLYPATH_FAULT names `{absent}`, and there is no such interface: that has no effect (there \
             are: {})",
            present.join(", ")
        ))
    }
}

/// Parses `1%` or `0.001%`.
fn share(text: &str) -> Option<Share> {
    let percent: f64 = text.strip_suffix('%')?.parse().ok()?;
    let parts = (percent * f64::from(Share::ALL) / 100.0).round();
    // A share that is rounded to 0 without being 0 is a mistake.
    let sensible = (0.0..=100.0).contains(&percent) && (percent == 0.0) == (parts == 0.0);
    sensible.then_some(Share(parts as u32))
}

/// Parses `5ms`.
fn time(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit);
    let micros = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(number * micros / 1e6).ok().filter(|time| *time <= TIME_MAX)
}

/// Parses `eth0@10s+5s`.
fn cut(text: &str) -> Option<Cut> {
    let (interface, times) = text.rsplit_once('@')?;
    let (at, lasts) = match times.split_once('+') {
        Some((at, lasts)) => (at, Some(time(lasts)?)),
        None => (times, None),
    };
    let cut = Cut { interface: interface.to_owned(), at: time(at)?, lasts };
    (!interface.is_empty()).then_some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn parse(text: &str) -> Faults {
        Faults::parse(text).unwrap().unwrap()
    }

    #[test]
    fn shares_delays_cuts_and_a_seed_are_understood() {
        let faults = parse("loss=1%,dup=0.1%, reorder=2%,delay=5ms,cut=eth0@10s");
        assert_eq!((faults.loss, faults.dup), (Share(10_000_000), Share(1_000_000)));
        assert_eq!((faults.reorder, faults.corrupt), (Share(20_000_000), Share(0)));
        assert_eq!((faults.delay, faults.jitter, faults.seed), (5 * MS, Duration::ZERO, None));
        let cut = |interface: &str, at, lasts| Cut { interface: interface.to_owned(), at, lasts };
        assert_eq!(faults.cuts, [cut("eth0", 10_000 * MS, None)]);
        let faults =
            parse("delay=1.5ms~500us,cut=a@0s,cut=b.7@1ms+2s,on=eth1,seed=7,corrupt=100%,");
        assert_eq!((faults.delay, faults.jitter), (MS * 3 / 2, MS / 2));
        assert_eq!(faults.cuts, [cut("a", Duration::ZERO, None), cut("b.7", MS, Some(2000 * MS))]);
        assert_eq!((faults.on.as_deref(), faults.seed), (Some("eth1"), Some(7)));
        assert_eq!(faults.corrupt, Share(Share::ALL));
        assert_eq!(Faults::parse(" , "), Ok(None));
    }

    #[test]
    fn the_item_that_is_wrong_is_named_and_a_right_one_shown() {
        for (wrong, right) in [
            ("loss=1", "loss=1%"),
            ("loss=101%", "to 100%"),
            ("loss=NaN%", "loss=1%"),
            ("dup=-1%", "dup=0.1%"),
            ("reorder=0.00000001%", "reorder=2%"),
            ("delay=5", "delay=5ms"),
            ("delay=5h", "delay=5ms"),
            ("delay=11s", "up to 10s"),
            ("delay=1ms~2ms", "not above"),
            ("delay=-1ms", "delay=5ms"),
            ("cut=eth0", "cut=eth0@10s"),
            ("cut=@10s", "cut=eth0@10s"),
            ("cut=eth0@10s+", "cut=eth0@10s+5s"),
            ("cut=eth0@1e300s", "cut=eth0@10s"),
            ("on=", "on=eth0"),
            ("seed=x", "seed=7"),
            ("lost=1%", "loss=1%"),
            ("loss", "loss=1%"),
        ] {
            let said = Faults::parse(&format!("dup=0%,{wrong}")).unwrap_err().to_string();
            assert!(said.contains(&format!("`{wrong}`")) && said.contains(right), "{said}");
        }
        let many = "cut=a@1s,".repeat(CUTS_MAX + 1);
        assert!(Faults::parse(&many).unwrap_err().to_string().contains("at most 16"));
    }

    #[test]
    fn interfaces_that_there_are_not_are_a_problem() {
        let faults = parse("cut=eth0@1s,on=eth9");
        assert_eq!(faults.interface_problem(&["eth0", "eth9"]), None);
        let said = faults.interface_problem(&["eth0", "eth1"]).unwrap();
        assert!(said.contains("`eth9`") && said.contains("eth0, eth1"), "{said}");
        assert_eq!(parse("loss=1%").interface_problem(&[]), None);
    }
}
