//! The files of `deploy/`: well-formed, in agreement with themselves, with the papers and with the variables that this library reads.

use std::{collections::HashMap, fs, path::Path, process::Command};

use saphyr::{LoadableYamlNode, Yaml};
use unisono::{Config, launch};

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of a manifest.
fn documents(text: &str) -> Vec<Yaml<'_>> {
    Yaml::load_from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The value at a path of keys, separated by dots; a number is an index in a list.
fn at<'a, 'y>(yaml: &'a Yaml<'y>, path: &str) -> &'a Yaml<'y> {
    path.split('.').fold(yaml, |yaml, key| {
        let found = match key.parse::<usize>() {
            Ok(place) => yaml.as_sequence_get(place),
            Err(_) => yaml.as_mapping_get(key),
        };
        found.unwrap_or_else(|| panic!("there is no {key} of {path} in {yaml:?}"))
    })
}

fn text<'a>(yaml: &'a Yaml<'_>, path: &str) -> &'a str {
    at(yaml, path).as_str().unwrap_or_else(|| panic!("{path} is not text"))
}

fn number(yaml: &Yaml<'_>, path: &str) -> i64 {
    at(yaml, path).as_integer().unwrap_or_else(|| panic!("{path} is no number"))
}

/// The variables of a container, all of which this library reads; the value of one that comes from a secret is empty.
fn variables(pod: &Yaml<'_>) -> HashMap<String, String> {
    let all = at(pod, "spec.containers.0.env").as_vec().unwrap().iter();
    let all: HashMap<_, _> = all
        .map(|one| {
            (
                text(one, "name").to_owned(),
                one.as_mapping_get("value").and_then(Yaml::as_str).unwrap_or_default().to_owned(),
            )
        })
        .collect();
    for name in all.keys() {
        let ours = Config::variables().iter().any(|known| known.name == name);
        assert!(ours || launch::variables().any(|known| known == name), "nothing reads {name}");
    }
    all
}

/// The launch of a rank of a job: from its variables, and from those that the command sets from the pod's number.
fn launched(pod: &Yaml<'_>, rank: usize) -> launch::Launch {
    let mut all = variables(pod);
    let command = text(pod, "spec.containers.0.command.2");
    assert!(command.starts_with("RANK=$JOB_COMPLETION_INDEX exec "), "{command}");
    all.insert("RANK".into(), rank.to_string());
    launch::detect(&|name| all.get(name).filter(|value| !value.is_empty()).cloned()).unwrap()
}

/// Checks an indexed job: each of its pods is a rank, and all use a store at the first pod's name.
fn is_a_world(job: &Yaml<'_>, first: &str) {
    assert_eq!(text(job, "spec.completionMode"), "Indexed");
    let ranks = usize::try_from(number(job, "spec.completions")).unwrap();
    assert_eq!(number(job, "spec.parallelism"), number(job, "spec.completions"), "all ranks run at once");
    assert_eq!(number(job, "spec.backoffLimit"), 0);
    let pod = at(job, "spec.template");
    assert_eq!(text(pod, "spec.restartPolicy"), "Never");
    for rank in 0..ranks {
        let it = launched(pod, rank);
        assert_eq!((it.launcher, it.rank, it.ranks), ("torchrun", rank, ranks));
        match it.rendezvous {
            launch::RendezvousPoint::Store(store) => {
                assert_eq!(store.to_string(), format!("tcp://{first}:29500"))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_job_is_a_world() {
    let file = read("deploy/kubernetes/job.yaml");
    let [service, job] = &documents(&file)[..] else { panic!("a service and a job are wanted") };
    assert_eq!((text(service, "kind"), text(service, "apiVersion")), ("Service", "v1"));
    assert_eq!((text(job, "kind"), text(job, "apiVersion")), ("Job", "batch/v1"));
    // The service gives the pods names, before they are ready.
    let (name, domain) = (text(job, "metadata.name"), text(service, "metadata.name"));
    assert_eq!(text(service, "spec.clusterIP"), "None");
    assert_eq!(at(service, "spec.publishNotReadyAddresses").as_bool(), Some(true));
    assert_eq!(text(service, "spec.selector.job-name"), name);
    assert_eq!(text(job, "spec.template.spec.subdomain"), domain);
    is_a_world(job, &format!("{name}-0.{domain}"));
}

#[test]
fn the_job_set_is_a_world() {
    let file = read("deploy/kubernetes/jobset.yaml");
    let [set] = &documents(&file)[..] else { panic!("one document is wanted") };
    assert_eq!((text(set, "kind"), text(set, "apiVersion")), ("JobSet", "jobset.x-k8s.io/v1alpha2"));
    assert_eq!(at(set, "spec.network.publishNotReadyAddresses").as_bool(), Some(true));
    let (name, jobs) = (text(set, "metadata.name"), at(set, "spec.replicatedJobs.0"));
    assert_eq!(number(jobs, "replicas"), 1);
    is_a_world(at(jobs, "template"), &format!("{name}-{}-0-0.{name}", text(jobs, "name")));
}

#[test]
fn the_leader_worker_set_is_a_world() {
    let file = read("deploy/kubernetes/leaderworkerset.yaml");
    let [set] = &documents(&file)[..] else { panic!("one document is wanted") };
    assert_eq!(
        (text(set, "kind"), text(set, "apiVersion")),
        ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1")
    );
    let template = at(set, "spec.leaderWorkerTemplate");
    let mut all = variables(at(template, "workerTemplate"));
    let size = number(template, "size").to_string();
    // The controller adds these.
    let variables_of_launcher = [
        ("LWS_GROUP_SIZE", &size[..]),
        ("LWS_WORKER_INDEX", "3"),
        ("LWS_LEADER_ADDRESS", "train-0.train.default"),
    ];
    all.extend(variables_of_launcher.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let it = launch::detect(&|name| all.get(name).filter(|value| !value.is_empty()).cloned()).unwrap();
    assert_eq!((it.launcher, it.rank, it.ranks), ("LeaderWorkerSet", 3, 4));
}

#[test]
fn the_policy_is_for_the_job() {
    let (policy, job) = (read("deploy/kubernetes/network-policy.yaml"), read("deploy/kubernetes/job.yaml"));
    let [policy] = &documents(&policy)[..] else { panic!("one document is wanted") };
    assert_eq!(text(policy, "kind"), "NetworkPolicy");
    let selected = "matchLabels.job-name";
    let from = format!("spec.ingress.0.from.0.podSelector.{selected}");
    for path in [&format!("spec.podSelector.{selected}"), &from] {
        assert_eq!(text(policy, path), text(&documents(&job)[1], "metadata.name"));
    }
}

#[test]
fn papers_show_the_files_as_they_are() {
    let paper = read("docs/pytorch.md");
    for file in ["slurm/srun.sh", "kubernetes/job.yaml", "kubernetes/network-policy.yaml"] {
        let kind = if file.ends_with("sh") { "bash" } else { "yaml" };
        let block = format!("```{kind}\n{}```", read(&format!("deploy/{file}")));
        assert!(paper.contains(&block), "docs/pytorch.md does not show deploy/{file} as it is");
    }
    // It shows the last line of this one.
    let torchrun = read("deploy/slurm/torchrun.sh");
    let last = torchrun.lines().last().unwrap();
    assert!(paper.contains(&format!("```bash\n{last}\n```")), "{last}");
}

#[test]
fn scripts_are_well_formed() {
    for script in ["srun", "torchrun"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("deploy/slurm/{script}.sh"));
        let checked = Command::new("bash").arg("-n").arg(&path).output().unwrap();
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("#!/bin/bash\n#SBATCH ") && text.contains("\nsrun "), "{text}");
    }
}

/// The instructions of a Dockerfile, with lines that go on as one.
fn instructions(text: &str) -> Vec<(String, String)> {
    let text = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n")
        .replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            line.split_once(' ').map(|(name, rest)| (name.to_owned(), rest.trim().to_owned())).unwrap()
        })
        .collect()
}

#[test]
fn the_image_has_what_programs_need() {
    let file = read("deploy/Dockerfile");
    let all = instructions(&file);
    let of = |name: &str| {
        let mut found = all.iter().filter(|(it, _)| it == name);
        let one = found.next().unwrap_or_else(|| panic!("there is no {name}"));
        assert!(found.next().is_none(), "there are several {name}");
        one.1.clone()
    };
    let known = ["ARG", "FROM", "RUN", "COPY", "ENTRYPOINT", "CMD"];
    assert!(all.iter().all(|(name, _)| known.contains(&name.as_str())), "{all:?}");
    // The base is an argument with this default.
    let base = of("ARG");
    assert!(base.starts_with("BASE=") && of("FROM") == "${BASE}", "{base}");

    // `make test-machines` runs programs in a root with these packages and no others.
    let fresh = read("ci/fresh.sh");
    let needed = fresh.lines().find_map(|line| line.split_once("include=libfabric1")).unwrap().1;
    let needed: Vec<_> = format!("libfabric1{needed}").split(',').map(str::to_owned).collect();
    let run = of("RUN");
    let installed = run.split("--no-install-recommends ").nth(1).unwrap().split(" && ").next().unwrap();
    let installed: Vec<_> = installed.split_whitespace().collect();
    for package in &needed {
        assert!(installed.contains(&package.as_str()), "the image lacks {package}: {installed:?}");
    }
    match Command::new("apt-cache").arg("show").args(&installed).output() {
        Ok(shown) => {
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            for package in installed {
                assert!(shown.contains(&format!("Package: {package}\n")), "there is no package {package}");
            }
        }
        Err(error) => println!("SKIPPED: names of the image's packages: there is no apt-cache: {error}"),
    }

    // The commands in its first lines make the context, and start the program in it. The file copies all of the context.
    let head: Vec<_> = file.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let built = head.iter().find(|line| line.starts_with("cargo build")).unwrap();
    let package = built.rsplit(' ').next().unwrap();
    let manifest = read("cli/Cargo.toml");
    assert!(
        manifest.contains(&format!("name = \"{package}\"")) && manifest.contains("name = \"unisono\""),
        "{built}"
    );
    assert!(head.contains(&"mkdir -p target/image && cp target/release/unisono target/image"), "{head:?}");
    assert!(head.iter().any(|line| line.ends_with("-f deploy/Dockerfile target/image")), "{head:?}");
    assert_eq!(of("COPY"), ". /usr/local/bin/");
    assert_eq!([of("ENTRYPOINT"), of("CMD")], ["[\"unisono\"]", "[\"doctor\"]"]);
}
