// The program `longspan`: finds the command and runs it. Exit status 0: success; 1: a user error,
// printed to stderr; 2: a defect of the program.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/process/end_process.h"
#include "cli/process/lost_gpus.h"
#include "cli/process/threads_without_memory.h"
#include "cli/torch_runtime.h"
#include "longspan/base/user_error.h"
#include "longspan/cpu/capability.h"
#include "longspan/input/input_file.h"
#include "longspan/liveness/agreement.h"
#include "longspan/memory/out_of_memory.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/text/deferred_warnings.h"
#include "longspan/text/print.h"

namespace longspan {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      train_command(),   data_command(),   chat_command(),       generate_command(),
      export_command(),  init_command(),   tokenizer_command(),  compare_command(),
      bench_command(),   schema_command(), completion_command(), env_command(),
      version_command(), help_command()};
  return all;
}

namespace {

/// Returns a library's message about a file, folder, memory or other processes; empty for other
/// errors.
std::string outside_cause(const std::exception& error) {
  if (dynamic_cast<const CommunicationError*>(&error) != nullptr) return error.what();
  if (dynamic_cast<const nlohmann::json::exception*>(&error) != nullptr) {
    return fmt::format("a value in a file has another type than expected ({}){}", error.what(),
                       last_input_file().empty()
                           ? ""
                           : fmt::format("; the last file that was read is {}", last_input_file()));
  }
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr) {
    return error.what();
  }
  return is_out_of_memory(error) ? describe_failure(error) : "";
}

int run_command(Arguments arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") arguments = {"help"};
  if (arguments[0] == "--version") arguments = {"version"};
  const std::string name = arguments[0];
  arguments.erase(arguments.begin());
  const bool wants_help = std::ranges::find(arguments, "--help") != arguments.end() ||
                          std::ranges::find(arguments, "-h") != arguments.end();
  const auto command = std::ranges::find(commands(), name, &Command::name);
  if (command == commands().end()) throw UserError(unknown_command(name));
  if (wants_help) return help_command().run({name});
  if (name != "help" && name != "version") cpu_capability();  // throws for an error in its variable
  if (command->computes) require_compiled_torch();
  const int status = command->run(arguments);
  for (const std::string& warning : take_deferred_warnings()) print_err("{}\n", warning);
  return status;
}

/// Runs the arguments and returns the exit status.
int status_of(Arguments arguments) {
  try {
    return run_command(std::move(arguments));
  } catch (const UserError& error) {
    claim_last_words();
    std::fflush(stdout);
    print_err("error: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    claim_last_words();
    std::fflush(stdout);
    // An unexpected error of a file or the machine is no defect of the program.
    const std::string outside = outside_cause(error);
    print_err("{}: {}\n", outside.empty() ? "internal error" : "error",
              outside.empty() ? error.what() : outside);
    return outside.empty() ? 2 : 1;
  }
}

}  // namespace

}  // namespace longspan

int main(int argc, char** argv) {
  // A file at its size limit (ulimit -f) gives a write error with a remedy. A closed pipe (| head)
  // ends this program silently, even if the parent ignores SIGPIPE.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_DFL);
  longspan::end_threads_without_memory();
  longspan::end_with_lost_gpus();
  const int status = longspan::status_of({argv + 1, argv + argc});
  std::fflush(nullptr);
  // main() has freed its own objects. Torch's static destructors take a tenth of a second to
  // unregister each operator: half of the time of a command that computes nothing.
  _exit(status);
}
