//! The registry of all kinds of devices.

use crate::bond::BOND;
use crate::mp::MP;
use crate::multiport::ROCE2;
use crate::provider::Provider;
use crate::roce::ROCE;

/// The provider of each kind. To add a kind, add its provider here and its driver to those of the
/// engine.
pub static PROVIDERS: [&dyn Provider; 4] = [ROCE, ROCE2, MP, BOND];

/// The provider whose devices a program without a selection gets.
pub(crate) fn for_interfaces(interfaces: usize) -> &'static dyn Provider {
    PROVIDERS.into_iter().find(|provider| provider.suits(interfaces)).unwrap_or(ROCE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::choice::Choice;
    use crate::gids::tests::port;
    use crate::table::Table;

    #[test]
    fn one_kind_suits_each_number_of_interfaces() {
        for interfaces in 0..20 {
            let suit = PROVIDERS.iter().filter(|provider| provider.suits(interfaces));
            assert_eq!(suit.count(), 1, "{interfaces}");
        }
    }

    #[test]
    fn what_names_a_device_names_no_other_of_any_kind() {
        let ports = (2..30).map(|n| port(n, &format!("eth{n}"), &[])).collect();
        let table = Table { ports, ..Table::default() };
        let all = |provider: &&dyn Provider| provider.devices(&table, &Choice::default());
        let devices: Vec<_> = PROVIDERS.iter().flat_map(all).collect();
        let different = |texts: Vec<String>| texts.into_iter().collect::<BTreeSet<_>>().len();
        assert_eq!(different(devices.iter().map(|d| d.name.clone()).collect()), devices.len());
        assert_eq!(different(devices.iter().map(|d| d.index.to_string()).collect()), devices.len());
        assert_eq!(
            different(devices.iter().map(|d| d.uverbs.to_string()).collect()),
            devices.len()
        );
        let prefixes = PROVIDERS.iter().map(|provider| provider.kind().prefix.to_owned());
        assert_eq!(different(prefixes.collect()), PROVIDERS.len());
    }

    #[test]
    fn device_files_have_numbers_that_no_real_device_has() {
        let table = Table { ports: vec![port(2, "eth0", &[])], ..Table::default() };
        let uverbs =
            |provider: &dyn Provider| provider.devices(&table, &Choice::default())[0].uverbs_name();
        assert_eq!((uverbs(ROCE), uverbs(MP)), ("uverbs1000".into(), "uverbs900".into()));
    }
}
