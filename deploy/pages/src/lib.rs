//! Man pages and shell completions of Ratewright's programs.
//!
//! Each program calls [`write_if_asked`] first. `PROGRAM --write-pages DIR` writes them from the
//! program's own command line, so that packages hold pages of just this build.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Shells whose completions are written.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes the pages into `DIR` if the process was called as `PROGRAM --write-pages DIR`; returns
/// the exit code for that, and `None` otherwise.
pub fn write_if_asked(command: Command) -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let [option, folder] = arguments.as_slice() else {
        return None;
    };
    if option != "--write-pages" {
        return None;
    }
    let name = command.get_name().to_owned();
    Some(match write(command, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: cannot write pages to {folder:?}: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Writes `man1/*.1`, one page for each command and subcommand, and `completions/` of three shells
/// into a folder, which it makes.
///
/// # Errors
/// A file cannot be written.
pub fn write(mut command: Command, folder: &Path) -> io::Result<()> {
    let (pages, completions) = (folder.join("man1"), folder.join("completions"));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    let name = command.get_name().to_owned();
    // First, since completions build the command, and with it the subcommands `help`.
    clap_mangen::generate_to(without_help(command.clone()), &pages)?;
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command, &name, &completions)?;
    }
    Ok(())
}

/// Removes the generated subcommands `help`, which need no pages of their own.
fn without_help(command: Command) -> Command {
    command
        .disable_help_subcommand(true)
        .mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_subcommand_has_a_page_and_each_shell_a_completion() {
        let command = Command::new("prog")
            .version("1.2.3")
            .about("Does things")
            .subcommand(
                Command::new("outer")
                    .about("Holds one")
                    .subcommand(Command::new("inner").about("Is held")),
            );
        let dir = tempfile::tempdir().unwrap();
        write(command, dir.path()).unwrap();
        for page in ["prog.1", "prog-outer.1", "prog-outer-inner.1"] {
            let text = fs::read_to_string(dir.path().join("man1").join(page)).unwrap();
            assert!(text.contains(".TH"), "{page}: {text}");
        }
        let help = fs::read_dir(dir.path().join("man1")).unwrap();
        assert_eq!(help.count(), 3, "no page for the subcommand help");
        let inner = fs::read_to_string(dir.path().join("man1/prog-outer-inner.1")).unwrap();
        assert!(inner.contains("Is held"), "{inner}");
        for file in ["prog.bash", "prog.fish", "_prog"] {
            assert!(dir.path().join("completions").join(file).exists(), "{file}");
        }
    }
}
