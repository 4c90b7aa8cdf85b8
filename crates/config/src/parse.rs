//! Turns the text of a configuration file into rules.

use polypath_topology::rules::RULES_MAX;
use polypath_topology::{Bonding, Rule, RuleScope, RuleSource};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::mistake::{Mistake, line};

/// The settings, as an error names them.
const SETTINGS: &str = "policy, affinity, cost, numa_node, primary, primary_reselect, updelay, \
     downdelay, hold, rendezvous, ecn, ports, local and tcp";

/// Parses a configuration file.
///
/// # Errors
/// The first [`Mistake`] that was found.
pub fn parse(text: &str) -> Result<Vec<Rule>, Mistake> {
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Mistake::at(text, at, error.message())
    })?;
    let mut rules: Vec<Rule> = Vec::new();
    for (key, value) in document.get_ref() {
        let at = key.span().start;
        match (&**key.get_ref(), value.get_ref()) {
            ("mp", DeValue::Table(table)) => {
                let reader = Reader { text, at, scoped: false };
                reader.rule(table)?.into_iter().for_each(|rule| rules.push(rule));
            }
            ("rule", DeValue::Array(list)) => {
                for item in list.iter() {
                    let at = item.span().start;
                    let DeValue::Table(table) = item.get_ref() else {
                        return Err(Mistake::at(text, at, "a rule begins with [[rule]]"));
                    };
                    let reader = Reader { text, at, scoped: true };
                    let rule = reader.rule(table)?;
                    let rule = rule.ok_or_else(|| reader.mistake("the rule is empty"))?;
                    reader.check_among(&rule, &rules)?;
                    rules.push(rule);
                }
            }
            ("mp", _) => {
                return Err(Mistake::at(text, at, "settings for everything begin with [mp]"));
            }
            ("rule", _) => {
                return Err(Mistake::at(text, at, "a rule begins with [[rule]], in two brackets"));
            }
            (other, _) => {
                let what = format!(
                    "`{}` is not understood here; write [mp] before settings for everything, and [[rule]] \
                     before those for a peer, program or device",
                    short(other)
                );
                return Err(Mistake::at(text, at, what));
            }
        }
    }
    Ok(rules)
}

/// The beginning of a text, for an error.
fn short(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}

/// Reads one table.
struct Reader<'a> {
    text: &'a str,
    /// The byte where the table begins.
    at: usize,
    /// Whether it is of a peer, a program or a device.
    scoped: bool,
}

impl Reader<'_> {
    fn mistake(&self, what: impl Into<String>) -> Mistake {
        Mistake::at(self.text, self.at, what)
    }

    /// The rule of a table; `None` if the table is empty.
    fn rule(&self, table: &DeTable<'_>) -> Result<Option<Rule>, Mistake> {
        if table.is_empty() {
            return Ok(None);
        }
        let (mut scope, mut settings) = (RuleScope::default(), Bonding::default());
        for (key, value) in table {
            let at = key.span().start;
            let name = &**key.get_ref();
            let wrong = |what: String| Mistake::at(self.text, at, what);
            match name {
                "peer" if self.scoped => {
                    let subnet = self.string(name, value)?.parse();
                    scope.peer =
                        Some(subnet.map_err(|error: polypath_topology::SubnetError| {
                            wrong(error.to_string())
                        })?);
                }
                "program" if self.scoped => scope.program = Some(self.string(name, value)?),
                "device" if self.scoped => scope.device = Some(self.string(name, value)?),
                "policy" | "affinity" | "primary" | "primary_reselect" | "updelay"
                | "downdelay" | "hold" | "rendezvous" | "ecn" | "ports" | "local" | "tcp" => {
                    let written = match name {
                        "updelay" | "downdelay" => {
                            self.number(name, value, "milliseconds: write one such as 200")?
                        }
                        "hold" => self.number(name, value, "seconds: write 1 to 86400")?,
                        "ports" => self.number(name, value, "source ports: write 1 to 8")?,
                        _ => self.string(name, value)?,
                    };
                    settings.set(name, &written).map_err(|()| {
                        wrong(format!("{name} is `{}`: {}", short(&written), values(name)))
                    })?;
                }
                "cost" | "numa_node" => {
                    for item in self.numbers_of_interfaces(name, value)? {
                        settings.set(name, &item).map_err(|()| {
                            wrong(format!("{name} is `{}`: {}", short(&item), values(name)))
                        })?;
                    }
                }
                "peer" | "program" | "device" => {
                    let what = format!("[mp] is for everything: write {name} below a [[rule]]");
                    return Err(wrong(what));
                }
                other => {
                    let scope = if self.scoped { "peer, program, device, " } else { "" };
                    let what =
                        format!("`{}` is not understood; write {scope}{SETTINGS}", short(other));
                    return Err(wrong(what));
                }
            }
        }
        if self.scoped && scope == RuleScope::default() {
            let what = "a rule needs a peer, a program or a device; what is for everything belongs \
                        below [mp]";
            return Err(self.mistake(what));
        }
        let source = RuleSource::File { line: line(self.text, self.at) };
        let rule = Rule { scope, settings, source };
        rule.check().map_err(|error| self.mistake(error.to_string()))?;
        Ok(Some(rule))
    }

    fn string(&self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<String, Mistake> {
        let what = || format!("{name} is a text: write it in quotation marks");
        let text = value.get_ref().as_str().map(str::to_owned);
        text.ok_or_else(|| Mistake::at(self.text, value.span().start, what()))
    }

    /// `of`: what the number counts, and what to write.
    fn number(
        &self,
        name: &str,
        value: &Spanned<DeValue<'_>>,
        of: &str,
    ) -> Result<String, Mistake> {
        let number = value.get_ref().as_integer().filter(|number| number.radix() == 10);
        let text = number.map(|number| number.as_str().replace('_', ""));
        text.ok_or_else(|| {
            let what = format!("{name} is a number of {of}");
            Mistake::at(self.text, value.span().start, what)
        })
    }

    /// The numbers of interfaces that a setting has, each as `eth0:10`.
    fn numbers_of_interfaces(
        &self,
        setting: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<String>, Mistake> {
        let at = value.span().start;
        let wrong = || Mistake::at(self.text, at, format!("{setting}: {}", values(setting)));
        let table = value.get_ref().as_table().ok_or_else(wrong)?;
        let item = |(name, number): (&Spanned<DeString<'_>>, &Spanned<DeValue<'_>>)| {
            let number = number.get_ref().as_integer().filter(|number| number.radix() == 10);
            let number = number.ok_or_else(wrong)?.as_str().replace('_', "");
            Ok(format!("{}:{number}", name.get_ref()))
        };
        table.iter().map(item).collect()
    }

    /// Checks that there is room for a rule, and none of the same scope before it.
    fn check_among(&self, rule: &Rule, rules: &[Rule]) -> Result<(), Mistake> {
        if rules.len() >= RULES_MAX {
            return Err(self.mistake(format!("more than {RULES_MAX} rules: merge some")));
        }
        if let Some(before) = rules.iter().find(|other| other.scope == rule.scope) {
            let RuleSource::File { line } = before.source else { return Ok(()) };
            let what = format!("{} has a rule in line {line} already: merge them", rule.scope);
            return Err(self.mistake(what));
        }
        Ok(())
    }
}

/// The values of a setting, as an error names them.
fn values(name: &str) -> &'static str {
    match name {
        "policy" => "write active-backup, balance, affinity, redundant or efficient",
        "affinity" => "write hash, round-robin, cpu or numa",
        "primary_reselect" => "write always, better or failure",
        "cost" => "write { eth0 = 10 }, with numbers from 0 to 65535 for up to 64 interfaces",
        "numa_node" => "write { eth0 = 1 }, with nodes from 0 to 65535 for up to 64 interfaces",
        "local" => "write on or off",
        "tcp" => "write \"on\", \"off\", or a port such as \"4791\"",
        "primary" => "write the name of an interface",
        "hold" => "write seconds from 1 to 86400",
        "rendezvous" => {
            "write the address of a host that both ends can reach, such as \"10.0.0.7\""
        }
        "ecn" => "write on or off",
        "ports" => "write a number from 1 to 8",
        _ => "write milliseconds from 0 on",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let rules = parse(text).unwrap_or_else(|mistake| panic!("{mistake}"));
        rules
            .iter()
            .map(|rule| {
                let RuleSource::File { line } = rule.source else { panic!("{rule:?}") };
                format!("{line}: {}: {}", rule.scope, rule.settings)
            })
            .collect()
    }

    #[test]
    fn a_file_is_settings_for_everything_and_rules() {
        let text = r#"
# Of this site.
[mp]
policy = "balance"
updelay = 1_500
cost = { eth0 = 10, eth1 = 2_000 }
numa_node = { eth1 = 1 }

[[rule]]
peer = "fd00:1::/64"
policy = "affinity"
affinity = "round-robin"

[[rule]]
program = "ib_write_bw"
device = "mp0"
primary = "eth1"
primary_reselect = "failure"
"#;
        assert_eq!(
            said(text),
            [
                "3: everything: balance,cost=eth0:10,cost=eth1:2000,numa_node=eth1:1,updelay=1500",
                "9: peer fd00:1::/64: affinity,affinity=round-robin",
                "14: program ib_write_bw, device mp0: primary=eth1,primary_reselect=failure",
            ]
        );
    }

    #[test]
    fn an_empty_file_says_nothing() {
        for text in ["", "# nothing\n", "[mp]\n"] {
            assert_eq!(said(text), [""; 0]);
        }
    }

    #[test]
    fn a_mistake_names_its_line_and_its_cure() {
        for (text, line, says) in [
            (
                "[mp]\npolicy = \"balanced\"",
                2,
                "write active-backup, balance, affinity, redundant or efficient",
            ),
            ("[mp]\n\npolicy = balance", 3, ""),
            ("[mp]\ncost = 10", 2, "write { eth0 = 10 }"),
            ("[mp]\ncost = { eth0 = \"10\" }", 2, "write { eth0 = 10 }"),
            ("[mp]\ncost = { eth0 = 65536 }", 2, "from 0 to 65535"),
            ("[mp]\npolicy = 1", 2, "quotation marks"),
            ("[mp]\nupdelay = \"200\"", 2, "write one such as 200"),
            ("[mp]\nhold = 0", 2, "write seconds from 1 to 86400"),
            ("[mp]\nhold = \"1\"", 2, "a number of seconds"),
            ("[mp]\necn = \"yes\"", 2, "write on or off"),
            ("[mp]\nupdelay = -1", 2, "write milliseconds from 0 on"),
            ("[mp]\nupdelay = 3600001", 1, "at most 3600000 ms"),
            ("[mp]\naffinity = \"hash\"", 1, "only with policy=affinity"),
            ("[mp]\nprimry = \"eth0\"", 2, "`primry` is not understood; write policy, affinity"),
            ("[mp]\npeer = \"10.0.0.0/8\"", 2, "below a [[rule]]"),
            ("[mp]\npolicy = \"balance\"\n[mp]", 3, ""),
            ("\n[rule]\npolicy = \"balance\"", 2, "in two brackets"),
            ("mp = 1", 1, "begin with [mp]"),
            ("rule = [1]", 1, "begins with [[rule]]"),
            ("policy = \"balance\"", 1, "write [mp] before settings"),
            ("[[rule]]\n", 1, "the rule is empty"),
            ("\n[[rule]]\npolicy = \"balance\"", 2, "needs a peer, a program or a device"),
            ("[[rule]]\npeer = \"10.0.0.1/8\"\npolicy = \"balance\"", 2, "write 10.0.0.0/8"),
            ("[[rule]]\npeer = \"10.0.0.0/8\"\nupdelay = 1", 1, "without naming a peer"),
            ("[[rule]]\ndevice = \"roce0\"\npolicy = \"balance\"", 1, "write mp0"),
            (
                "[[rule]]\nprocess = 7\npolicy = \"balance\"",
                2,
                "write peer, program, device, policy",
            ),
        ] {
            let mistake = parse(text).expect_err(text);
            assert_eq!(mistake.line, line, "{text:?}: {mistake}");
            assert!(mistake.what.contains(says), "{text:?}: {mistake}");
            assert!(!mistake.what.contains('\n') && !mistake.what.is_empty(), "{mistake}");
        }
    }

    #[test]
    fn two_rules_of_one_scope_and_too_many_are_refused() {
        let rule = |n: usize| format!("[[rule]]\npeer = \"10.0.0.{n}\"\npolicy = \"balance\"\n");
        let twice = rule(1) + &rule(2) + &rule(1);
        let mistake = parse(&twice).unwrap_err().to_string();
        assert!(mistake.contains("line 7: peer 10.0.0.1 has a rule in line 1"), "{mistake}");
        let many: String = (0..RULES_MAX).map(rule).collect();
        assert_eq!(parse(&many).unwrap().len(), RULES_MAX);
        let mistake = parse(&(many + &rule(200))).unwrap_err();
        assert!(mistake.what.contains("more than 24 rules"), "{mistake}");
    }
}
