//! `dsv4 doctor`: what this machine offers, and what is missing and why.

use super::{write_json, write_text};
use crate::checkpoint::{BUILTINS, Checkpoint};
use crate::error::{Result, exit};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Say what this machine offers: processor, memory, GPU, driver, NVRTC, and the built-in model
#[derive(Debug, Clone, clap::Args)]
pub struct DoctorArgs {
    /// Print one JSON object (schema dsv4.doctor/1) instead of text
    #[arg(long)]
    pub json: bool,
}

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    /// `None`: not there, which is no failure.
    ok: Option<bool>,
    says: String,
}

/// Runs the command: exit 1 only if the tool itself cannot work here.
pub fn run(args: &DoctorArgs, out: &mut dyn Write) -> Result<i32> {
    let all = [processor(), memory(), model(), gpu(), driver(), nvrtc()];
    let well = all.iter().all(|f| f.ok != Some(false));
    if args.json {
        let list: Vec<Value> =
            all.iter().map(|f| json!({"what": f.what, "ok": f.ok, "says": f.says})).collect();
        write_json(out, &json!({"schema": "dsv4.doctor/1", "ok": well, "findings": list}))?;
    } else {
        let mut t = String::from(if well {
            "dsv4 works on this machine.\n\n"
        } else {
            "dsv4 does not work on this machine; see below.\n\n"
        });
        for f in &all {
            let mark = match f.ok {
                Some(true) => "ok",
                Some(false) => "FAILED",
                None => "none",
            };
            let text = super::table::wrapped(&f.says, 22);
            t += &format!("{:<14}{mark:<8}{}", f.what, text.trim_start());
        }
        write_text(out, &t)?;
    }
    Ok(if well { exit::OK } else { exit::DIFFERENCE })
}

fn found(what: &'static str, says: impl Into<String>) -> Finding {
    Finding { what, ok: Some(true), says: says.into() }
}

fn absent(what: &'static str, says: impl Into<String>) -> Finding {
    Finding { what, ok: None, says: says.into() }
}

fn processor() -> Finding {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    #[cfg(target_arch = "x86_64")]
    let vectors = if is_x86_feature_detected!("avx512f") {
        "AVX-512"
    } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        "AVX2"
    } else {
        "no vector instructions that are used"
    };
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = "portable code";
    found(
        "processor",
        format!(
            "{threads} threads, {}, {vectors}; results are the same bits on all of them",
            std::env::consts::ARCH
        ),
    )
}

fn memory() -> Finding {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok()
    };
    match (kib("MemTotal:"), kib("MemAvailable:")) {
        (Some(all), Some(free)) => {
            let gib = 1024.0 * 1024.0;
            found("memory", format!("{:.1} GiB, {:.1} GiB of it available", all / gib, free / gib))
        }
        _ => absent("memory", "the system does not tell how much there is"),
    }
}

fn model() -> Finding {
    match Checkpoint::open(BUILTINS[0]).and_then(|c| c.check().map(|()| c.fingerprint().to_string())) {
        Ok(fingerprint) => found("model", format!("{} is whole, fingerprint {fingerprint}", BUILTINS[0])),
        Err(e) => Finding { what: "model", ok: Some(false), says: e.to_string() },
    }
}

fn gpu() -> Finding {
    let device = (0..16).filter(|i| Path::new(&format!("/dev/nvidia{i}")).exists()).count();
    if device == 0 {
        return absent("GPU", "no /dev/nvidia0: everything runs on the processor, with the same results");
    }
    let name = std::fs::read_dir("/proc/driver/nvidia/gpus").ok().and_then(|d| {
        let first = d.filter_map(|e| e.ok()).map(|e| e.path()).min()?;
        let text = std::fs::read_to_string(first.join("information")).ok()?;
        text.lines().find_map(|l| l.strip_prefix("Model:")).map(|m| m.trim().to_owned())
    });
    found("GPU", format!("{device}: {}", name.as_deref().unwrap_or("model not told by the driver")))
}

fn driver() -> Finding {
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let library = libraries().into_iter().find_map(|d| newest(&d, "libcuda.so"));
    match (version.as_deref().and_then(|v| v.lines().next()), library) {
        (Some(v), Some(l)) => found("driver", format!("{v}; {}", l.display())),
        (Some(v), None) => absent("driver", format!("{v}, but libcuda.so is in no usual place")),
        (None, Some(l)) => absent("driver", format!("{} is there, but no driver runs", l.display())),
        (None, None) => {
            absent("driver", "no NVIDIA driver: /proc/driver/nvidia and libcuda.so are not there")
        }
    }
}

fn nvrtc() -> Finding {
    match libraries().into_iter().find_map(|d| newest(&d, "libnvrtc.so")) {
        Some(l) => found("NVRTC", l.display().to_string()),
        None => absent(
            "NVRTC",
            "libnvrtc.so is in no usual place (LD_LIBRARY_PATH, CUDA_HOME, /usr/local/cuda, a Python environment's \
             nvidia packages); only GPU kernels need it: pip install nvidia-cuda-nvrtc",
        ),
    }
}

/// The file of `dir` whose name begins so; the first in order.
fn newest(dir: &Path, name: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.filter_map(|e| e.ok()).map(|e| e.path());
    files.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(name))).max()
}

/// Where CUDA's libraries usually are.
fn libraries() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> =
        std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths).collect();
    for home in ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os) {
        out.push(Path::new(&home).join("lib64"));
    }
    out.extend(
        [
            "/usr/local/cuda/lib64",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib64",
            "/usr/local/nvidia/lib64",
            "/usr/lib",
        ]
        .map(PathBuf::from),
    );
    let env = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    for prefix in env.chain(["/usr", "/usr/local"].map(PathBuf::from)) {
        for python in
            sorted(&prefix.join("lib")).into_iter().filter(|p| p.to_string_lossy().contains("python3"))
        {
            for site in ["site-packages", "dist-packages"] {
                out.extend(sorted(&python.join(site).join("nvidia")).into_iter().map(|p| p.join("lib")));
            }
        }
    }
    out
}

fn sorted(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir)
        .map(|d| d.filter_map(|e| e.ok()).map(|e| e.path()).collect())
        .unwrap_or_default();
    all.sort();
    all
}
