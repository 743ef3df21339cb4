use super::*;

/// Random joins, leaves and changes of prefixes, sent as messages of which some are lost, doubled
/// or overtaken. Once the whole that the view asks for has come, it equals the model; and prefixes
/// that are applied change by change equal the view at every step.
#[test]
fn the_view_equals_the_model_after_losses_and_reordering() {
    let mut seed = 7_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let prefix = |n: u64| -> IpNet { format!("10.0.0.{n}/32").parse().expect("a prefix") };
    let member = |id: u32, prefixes: &[IpNet]| Member {
        id,
        name: format!("m{id}"),
        prefixes: prefixes.to_vec(),
        gone: prefixes.is_empty(),
    };
    for round in 0..200 {
        let mut view = MemberView::default();
        view.begin_session(1);
        let mut model: BTreeMap<u32, Vec<IpNet>> = BTreeMap::new();
        let mut applied: BTreeMap<(u32, IpNet), ()> = BTreeMap::new();
        let mut version = 0;
        let (mut late, mut gaps) = (Vec::new(), 0);
        let mut feed = |view: &mut MemberView, message: Members, gaps: &mut u32| {
            match view.apply(message) {
                Applied::Changed(change) => {
                    for gone in change.removed {
                        assert!(applied.remove(&gone).is_some(), "round {round}: {gone:?}");
                    }
                    for new in change.added {
                        assert!(applied.insert(new, ()).is_none(), "round {round}: {new:?}");
                    }
                }
                Applied::Unchanged => {}
                Applied::Gap => *gaps += 1,
            }
            let seen: Vec<_> = view.prefixes().map(|(id, prefix)| (id, *prefix)).collect();
            let expected: Vec<_> = applied.keys().copied().collect();
            let sorted = |mut list: Vec<(u32, IpNet)>| {
                list.sort();
                list
            };
            assert_eq!(sorted(seen), sorted(expected));
        };
        for _ in 0..60 {
            let id = random(6) as u32;
            let own: Vec<IpNet> = (0..random(3))
                .map(|n| prefix(10 * u64::from(id) + n))
                .collect();
            if own.is_empty() {
                model.remove(&id);
            } else {
                model.insert(id, own.clone());
            }
            let delta = Members {
                from: version,
                to: version + 1,
                hosts: vec![member(id, &own)],
                ..Members::default()
            };
            version += 1;
            match random(8) {
                0 => {}
                1 => late.push(delta),
                2 => {
                    feed(&mut view, delta.clone(), &mut gaps);
                    feed(&mut view, delta, &mut gaps);
                }
                _ => feed(&mut view, delta, &mut gaps),
            }
            if random(5) == 0 {
                for old in late.drain(..) {
                    feed(&mut view, old, &mut gaps);
                }
            }
        }
        // The server answers a question with all members, in two parts.
        let all: Vec<Member> = model.iter().map(|(id, own)| member(*id, own)).collect();
        let half = all.len() / 2;
        for (hosts, more) in [(&all[..half], true), (&all[half..], false)] {
            let part = Members {
                to: version,
                whole: true,
                more,
                hosts: hosts.to_vec(),
                ..Members::default()
            };
            feed(&mut view, part, &mut gaps);
        }
        assert_eq!(view.hosts, model, "round {round}");
        assert!(gaps <= 1, "it asks once until it is answered");
        assert_eq!(view.version, Some(version));
    }
}

#[test]
fn members_of_another_incarnation_are_forgotten_and_others_kept() {
    let mut view = MemberView::default();
    view.begin_session(1);
    let own: IpNet = "10.0.0.1/32".parse().expect("a prefix");
    let host = Member {
        id: Member::id_of(4, 1),
        prefixes: vec![own],
        ..Member::default()
    };
    let whole = Members {
        to: 1,
        whole: true,
        hosts: vec![host],
        ..Members::default()
    };
    assert!(matches!(view.apply(whole.clone()), Applied::Changed(_)));
    view.begin_session(1);
    assert_eq!(view.len(), 1);
    assert_eq!(view.apply(whole), Applied::Unchanged);
    view.begin_session(2);
    assert!(view.is_empty());
}

#[test]
fn ids_tell_the_tenants_of_a_place_apart() {
    for (place, tenant) in [(0, 0), (262_143, 0), (262_143, Member::TENANTS - 1), (7, 3)] {
        assert_eq!(
            Member::place_and_tenant(Member::id_of(place, tenant)),
            (place, tenant)
        );
    }
    assert_eq!(
        Member::id_of(9, 0),
        9,
        "hosts of the file keep their numbers"
    );
}
