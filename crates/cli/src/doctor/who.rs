//! Who asks, and where: the remedies for root, for an ordinary user and in a container differ.

use std::fs;
use std::path::Path;

use rustix::thread::CapabilitySet;

/// The kind of surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The system itself, or a virtual machine.
    Machine,
    /// A container of Docker, Podman, LXC or another.
    Container,
    /// A container of a pod.
    Kubernetes,
}

impl Place {
    /// For the output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Container => "container",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// The asking process.
#[derive(Clone, Debug)]
pub struct Who {
    /// The effective user.
    pub user: u32,
    /// Its name, if the system knows it.
    pub name: Option<String>,
    /// All its groups at present.
    pub groups: Vec<u32>,
    /// Its surroundings.
    pub place: Place,
    /// Privileges, as the kernel grants them to resources of the whole machine: none in a user namespace.
    pub capabilities: CapabilitySet,
    /// No user namespace.
    pub is_initial: bool,
}

impl Who {
    /// The calling process.
    pub fn read() -> Self {
        let user = rustix::process::geteuid().as_raw();
        let sets = rustix::thread::capabilities(None);
        let groups = rustix::process::getgroups().unwrap_or_default();
        let mut groups: Vec<u32> = groups.into_iter().map(|group| group.as_raw()).collect();
        groups.push(rustix::process::getegid().as_raw());
        let map = fs::read_to_string("/proc/self/uid_map").ok();
        let is_initial = map.as_deref().is_none_or(is_whole);
        Self {
            user,
            name: name_of(&fs::read_to_string("/etc/passwd").unwrap_or_default(), user),
            groups,
            place: place(
                |variable| std::env::var_os(variable).is_some(),
                |path| Path::new(path).exists(),
            ),
            capabilities: match sets {
                Ok(sets) if is_initial => sets.effective,
                _ => CapabilitySet::empty(),
            },
            is_initial,
        }
    }

    /// Whether it has a privilege.
    pub fn may(&self, capability: CapabilitySet) -> bool {
        self.capabilities.contains(capability)
    }

    /// Whether it is root, with or without privileges.
    pub fn is_root(&self) -> bool {
        self.user == 0
    }

    /// For commands: its name, or a word to replace.
    pub fn login(&self) -> &str {
        self.name.as_deref().unwrap_or("USER")
    }

    /// For people.
    pub fn described(&self) -> String {
        let user = match &self.name {
            Some(name) => name.clone(),
            None => format!("user {}", self.user),
        };
        match self.place {
            Place::Machine => user,
            Place::Container => format!("{user}, in a container"),
            Place::Kubernetes => format!("{user}, in a Kubernetes pod"),
        }
    }
}

/// Every user of the machine: no user namespace.
fn is_whole(map: &str) -> bool {
    let fields: Vec<&str> = map.split_whitespace().collect();
    fields == ["0", "0", "4294967295"]
}

fn name_of(passwd: &str, user: u32) -> Option<String> {
    let user = user.to_string();
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == user).then(|| name.to_owned())
    })
}

fn place(has_variable: impl Fn(&str) -> bool, exists: impl Fn(&str) -> bool) -> Place {
    if has_variable("KUBERNETES_SERVICE_HOST") {
        return Place::Kubernetes;
    }
    let files = [
        "/.dockerenv",
        "/run/.containerenv",
        "/run/systemd/container",
    ];
    // systemd-nspawn, LXC and Podman set the variable.
    if has_variable("container") || files.iter().any(|file| exists(file)) {
        return Place::Container;
    }
    Place::Machine
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn root() -> Who {
        Who {
            user: 0,
            name: Some("root".into()),
            groups: vec![0],
            place: Place::Machine,
            capabilities: CapabilitySet::all(),
            is_initial: true,
        }
    }

    pub fn ordinary() -> Who {
        Who {
            user: 1000,
            name: Some("ada".into()),
            groups: vec![1000],
            place: Place::Machine,
            capabilities: CapabilitySet::empty(),
            is_initial: true,
        }
    }

    pub fn contained(place: Place) -> Who {
        Who { place, ..root() }
    }

    #[test]
    fn surroundings() {
        assert_eq!(place(|_| false, |_| false), Place::Machine);
        assert_eq!(
            place(|_| false, |path| path == "/.dockerenv"),
            Place::Container
        );
        assert_eq!(
            place(|name| name == "container", |_| false),
            Place::Container
        );
        let pod = place(|name| name == "KUBERNETES_SERVICE_HOST", |_| true);
        assert_eq!(pod, Place::Kubernetes);
    }

    #[test]
    fn names_and_namespaces() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(name_of(passwd, 1000).as_deref(), Some("ada"));
        assert_eq!(name_of(passwd, 7), None);
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("0 1000 1\n"));
        assert!(Who::read().user == rustix::process::geteuid().as_raw());
    }
}
