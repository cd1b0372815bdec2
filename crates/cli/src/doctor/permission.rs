//! The permission for userfaultfd, and how to get it.
//!
//! The attempt is the one of `run`. If it is refused, the device, the sysctl and the groups tell which of the ways to
//! the permission is the shortest here.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use foreswap::sys::uffd::{Features, Uffd, UffdError};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::check::Check;
use super::system::unfiltered;
use super::who::{Place, Who};

/// Of the documents and of the remedies.
const GROUP: &str = "foreswap";
const DEVICE: &str = "/dev/userfaultfd";
const WHY: &str = "The kernel reports absent pages through a userfaultfd.";

/// What is read.
#[derive(Debug)]
pub struct PermissionFacts {
    /// The attempt of `run`.
    pub opened: Result<(), UffdError>,
    /// Forks past the C library are reported, too.
    pub forks: bool,
    /// The device.
    pub device: Device,
    /// Its minor number in /proc/misc: the kernel has the device, whether or not there is a node.
    pub minor: Option<u32>,
    /// `vm.unprivileged_userfaultfd`.
    pub sysctl: Option<u8>,
    /// The members of the group that has the device, or of `foreswap`, in /etc/group.
    pub group: Option<Group>,
}

/// The node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// None.
    Missing,
    /// Another file.
    Another,
    /// There.
    There {
        /// Permission bits.
        mode: u32,
        /// Its group.
        group: u32,
        /// Whether the permissions let this user open it.
        accessible: bool,
    },
}

/// A group of /etc/group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The asking user is a member.
    pub has_user: bool,
}

impl PermissionFacts {
    /// For `who`.
    pub fn read(who: &Who) -> Self {
        let device = match fs::metadata(DEVICE) {
            Err(_) => Device::Missing,
            Ok(meta) if !meta.file_type().is_char_device() => Device::Another,
            Ok(meta) => Device::There {
                mode: meta.mode() & 0o777,
                group: meta.gid(),
                accessible: rustix::fs::access(DEVICE, Access::READ_OK | Access::WRITE_OK).is_ok(),
            },
        };
        let misc = fs::read_to_string("/proc/misc").unwrap_or_default();
        let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").ok();
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        Self {
            opened: Uffd::open(Features::NEEDED).map(drop),
            forks: Uffd::open(Features::NEEDED | Features::EVENT_FORK).is_ok(),
            device,
            minor: minor_of(&misc),
            sysctl: sysctl.and_then(|text| text.trim().parse().ok()),
            group: group_of(&groups, device, who.name.as_deref()),
        }
    }
}

fn minor_of(misc: &str) -> Option<u32> {
    misc.lines().find_map(|line| {
        let (minor, name) = line.trim().split_once(' ')?;
        (name == "userfaultfd")
            .then(|| minor.parse().ok())
            .flatten()
    })
}

/// The group of the device if it may use it, else the one named foreswap.
fn group_of(groups: &str, device: Device, user: Option<&str>) -> Option<Group> {
    let parsed = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, number, members] = fields[..] else {
            return None;
        };
        Some(Group {
            number: number.parse().ok()?,
            name: name.to_owned(),
            has_user: user.is_some_and(|user| members.split(',').any(|member| member == user)),
        })
    });
    let parsed: Vec<Group> = parsed.collect();
    let of_device = match device {
        Device::There { mode, group, .. } if mode & 0o060 == 0o060 && group != 0 => Some(group),
        _ => None,
    };
    let by_number = |number| parsed.iter().find(|group| group.number == number);
    let found = of_device.and_then(by_number);
    found
        .or_else(|| parsed.iter().find(|group| group.name == GROUP))
        .cloned()
}

/// The checks of this file.
pub fn judge(facts: &PermissionFacts, who: &Who) -> Vec<Check> {
    let (device, call) = match &facts.opened {
        Ok(()) => return vec![granted(facts)],
        // The kernel's check reports these.
        Err(UffdError::FeatureMissing { .. } | UffdError::NoSupport) => return Vec::new(),
        Err(UffdError::NoPermission { device, call }) => (*device, *call),
        Err(error @ UffdError::Other { .. }) => {
            return vec![Check::failure("userfaultfd", error.to_string(), WHY)];
        }
    };
    vec![with_facts(refused(facts, who, device, call), facts)]
}

fn with_facts(check: Check, facts: &PermissionFacts) -> Check {
    let check = match facts.device {
        Device::There {
            mode, accessible, ..
        } => check
            .fact("device_mode", format!("{mode:03o}"))
            .fact("device_accessible", accessible),
        Device::Missing | Device::Another => check.fact("device_accessible", false),
    };
    check
        .fact("unprivileged_userfaultfd", facts.sysctl)
        .fact("reports_forks", facts.forks)
}

fn granted(facts: &PermissionFacts) -> Check {
    let way = match facts.device {
        Device::There {
            accessible: true, ..
        } => "by /dev/userfaultfd",
        _ => "by the system call",
    };
    let check = if facts.forks {
        Check::ok("userfaultfd", format!("permitted, {way}"))
    } else {
        // docs/LIMITS.md has the case.
        Check::note(
            "userfaultfd",
            format!("permitted, {way}; without CAP_SYS_PTRACE"),
            "Once pages are swapped out, a child that a program forks past the C library (inline assembly) \
             does not have the managed memory, and gets SIGSEGV there. Ordinary forks are complete.",
        )
    };
    with_facts(check, facts)
}

/// The permission is lacking: the ways to it, the shortest first.
fn refused(facts: &PermissionFacts, who: &Who, device: Errno, call: Errno) -> Check {
    let check = |found: String| Check::failure("userfaultfd", found, WHY);
    let is_privileged = who.may(CapabilitySet::SYS_PTRACE);
    match facts.device {
        Device::There {
            accessible: true, ..
        } => {
            // The permissions are right: a device controller or a filter refuses it.
            let check = check(format!(
                "{DEVICE} is there, but the kernel refuses it ({device}); userfaultfd(2): {call}"
            ));
            in_container(check, who)
        }
        Device::There { mode, .. } => {
            let check = check(format!(
                "no permission for {DEVICE} (mode {mode:03o}), and none for userfaultfd(2)"
            ));
            let check = by_group(check, facts, who);
            match who.place {
                Place::Machine => check,
                _ => in_container(check, who),
            }
        }
        Device::Missing | Device::Another if who.place != Place::Machine => {
            let check = check(format!(
                "{DEVICE} is not in this container, and userfaultfd(2) is refused ({call})"
            ));
            let check = in_container(check, who);
            let check = match is_privileged {
                true => unfiltered(check, who, "userfaultfd"),
                false => check,
            };
            match facts.minor {
                Some(minor) => check.remedy(
                    "or as root in it, if it may make devices (--privileged)",
                    node_commands(facts.device, minor, who),
                ),
                None => check,
            }
        }
        Device::Missing | Device::Another => {
            let check = check(format!(
                "{DEVICE} does not exist, and userfaultfd(2) is refused ({call})"
            ));
            let Some(minor) = facts.minor else {
                return unfiltered(by_sysctl(check), who, "userfaultfd");
            };
            check.remedy("as root", node_commands(facts.device, minor, who))
        }
    }
}

/// The node, and the permission of a user that is not root.
fn node_commands(device: Device, minor: u32, who: &Who) -> Vec<String> {
    let node = format!("mknod -m 600 {DEVICE} c 10 {minor}");
    let node = match device {
        Device::Another => format!("rm {DEVICE} && {node}"),
        _ => node,
    };
    let group = (!who.is_root()).then(|| group_commands(who));
    [node]
        .into_iter()
        .chain(group.into_iter().flatten())
        .collect()
}

fn in_container(check: Check, who: &Who) -> Check {
    match who.place {
        Place::Kubernetes => check
            .remedy(
                "with a device plugin on the nodes (generic-device-plugin)",
                [r#"args: ["--device", "{name: userfaultfd, groups: [{paths: [{path: /dev/userfaultfd}]}]}"]"#],
            )
            .remedy(
                "and then in the container's spec",
                ["resources: {limits: {squat.ai/userfaultfd: 1}}"],
            ),
        Place::Container => {
            let user = match who.is_root() {
                true => "",
                false => " --group-add \"$(stat -c %g /dev/userfaultfd)\"",
            };
            check.remedy(
                "where the container is started",
                [format!("docker run --device {DEVICE}{user} IMAGE")],
            )
        }
        Place::Machine => unfiltered(check, who, "userfaultfd"),
    }
}

fn by_sysctl(check: Check) -> Check {
    check.remedy(
        "or as root, for all users (weaker: any process may then delay the kernel)",
        ["sysctl -w vm.unprivileged_userfaultfd=1"],
    )
}

/// The device for a group, now and, outside of containers, after each boot.
fn group_commands(who: &Who) -> Vec<String> {
    let rule = format!(
        r#"echo 'KERNEL=="userfaultfd", GROUP="{GROUP}", MODE="0660"' > /etc/udev/rules.d/60-userfaultfd.rules"#
    );
    let mut commands = vec![
        format!("groupadd --system --force {GROUP}"),
        format!("usermod -aG {GROUP} {}", who.login()),
        format!("chgrp {GROUP} {DEVICE} && chmod 660 {DEVICE}"),
    ];
    commands.extend((who.place == Place::Machine).then_some(rule));
    commands
}

fn by_group(check: Check, facts: &PermissionFacts, who: &Who) -> Check {
    let Device::There { mode, group, .. } = facts.device else {
        return check;
    };
    let serves = |known: &Group| known.number == group && mode & 0o060 == 0o060;
    match &facts.group {
        Some(known) if serves(known) && known.has_user && !who.groups.contains(&known.number) => {
            check.remedy(
                &format!(
                    "{} is in group {} since this session began: log in again, or",
                    who.login(),
                    known.name
                ),
                [format!("newgrp {}", known.name)],
            )
        }
        Some(known) if serves(known) => check.remedy(
            "as root; then log in again",
            [format!("usermod -aG {} {}", known.name, who.login())],
        ),
        _ if who.place == Place::Machine => by_sysctl(check.remedy(
            "as root (the last line is for later boots); then log in again",
            group_commands(who),
        )),
        _ => check.remedy(
            "as root in this container; then in a new session",
            group_commands(who),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::super::who::tests::{contained, ordinary, root};
    use super::*;

    fn facts(device: Device) -> PermissionFacts {
        PermissionFacts {
            opened: Err(UffdError::NoPermission {
                device: Errno::ACCESS,
                call: Errno::PERM,
            }),
            forks: false,
            device,
            minor: Some(257),
            sysctl: Some(0),
            group: None,
        }
    }

    const CLOSED: Device = Device::There {
        mode: 0o600,
        group: 0,
        accessible: false,
    };
    const OPEN: Device = Device::There {
        mode: 0o600,
        group: 0,
        accessible: true,
    };

    fn only(facts: &PermissionFacts, who: &Who) -> Check {
        let mut checks = judge(facts, who);
        assert_eq!(checks.len(), 1);
        checks.remove(0)
    }

    fn commands(check: &Check) -> String {
        let remedies = check.remedies.iter();
        remedies
            .flat_map(|remedy| {
                remedy
                    .commands
                    .join("\n")
                    .chars()
                    .chain(['\n'])
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    pub fn permitted() -> PermissionFacts {
        PermissionFacts {
            opened: Ok(()),
            forks: true,
            ..facts(OPEN)
        }
    }

    #[test]
    fn permission_with_and_without_forks() {
        assert_eq!(only(&permitted(), &root()).verdict, Verdict::Ok);
        let without = PermissionFacts {
            forks: false,
            ..permitted()
        };
        let check = only(&without, &ordinary());
        assert_eq!(check.verdict, Verdict::Note);
        assert!(check.remedies.is_empty() && check.why.contains("SIGSEGV"));
    }

    #[test]
    fn an_ordinary_user_gets_a_group() {
        let check = only(&facts(CLOSED), &ordinary());
        assert_eq!(check.verdict, Verdict::Failure);
        let text = commands(&check);
        for part in [
            "usermod -aG foreswap ada",
            "chmod 660",
            "60-userfaultfd.rules",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.ends_with("vm.unprivileged_userfaultfd=1\n"), "{text}");
    }

    #[test]
    fn a_group_that_exists_is_used() {
        let device = Device::There {
            mode: 0o660,
            group: 990,
            accessible: false,
        };
        let with = |has_user| PermissionFacts {
            group: Some(Group {
                number: 990,
                name: "kvm".into(),
                has_user,
            }),
            ..facts(device)
        };
        let check = only(&with(false), &ordinary());
        assert_eq!(commands(&check), "usermod -aG kvm ada\n");
        let check = only(&with(true), &ordinary());
        assert_eq!(commands(&check), "newgrp kvm\n");
    }

    #[test]
    fn a_missing_device_is_made() {
        let check = only(&facts(Device::Missing), &root());
        assert_eq!(commands(&check), "mknod -m 600 /dev/userfaultfd c 10 257\n");
        let check = only(&facts(Device::Another), &ordinary());
        let text = commands(&check);
        assert!(text.starts_with("rm /dev/userfaultfd && mknod"), "{text}");
        assert!(text.contains("usermod"), "{text}");
    }

    #[test]
    fn containers_get_the_device_from_outside() {
        for device in [Device::Missing, CLOSED, OPEN] {
            let check = only(&facts(device), &contained(Place::Container));
            let text = commands(&check);
            assert!(text.contains("--device /dev/userfaultfd"), "{text}");
            let check = only(&facts(device), &contained(Place::Kubernetes));
            let text = commands(&check);
            assert!(text.contains("squat.ai/userfaultfd"), "{text}");
        }
        // Root's privilege would do, if a filter did not refuse the call.
        let check = only(&facts(Device::Missing), &contained(Place::Container));
        assert!(commands(&check).contains("seccomp"), "{check:?}");
    }

    #[test]
    fn a_filter_outside_a_container() {
        let check = only(&facts(OPEN), &root());
        assert!(commands(&check).contains("SystemCallFilter"), "{check:?}");
    }

    #[test]
    fn tables_of_the_system() {
        assert_eq!(minor_of("257 userfaultfd\n 60 vga\n"), Some(257));
        assert_eq!(minor_of(" 60 vga\n"), None);
        let groups = "root:x:0:\nforeswap:x:980:ada,bob\nkvm:x:990:bob\n";
        let found = group_of(groups, CLOSED, Some("ada")).expect("foreswap");
        assert_eq!((found.number, found.has_user), (980, true));
        let device = Device::There {
            mode: 0o660,
            group: 990,
            accessible: false,
        };
        let found = group_of(groups, device, Some("ada")).expect("kvm");
        assert_eq!((found.name.as_str(), found.has_user), ("kvm", false));
    }
}
