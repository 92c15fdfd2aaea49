// A shell command that runs concurrently with this process. No torch.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <map>
#include <string>

namespace longspan {

/// A command in its own process group. This process writes the command's standard input and reads
/// its outputs. The destructor kills the group if the command still runs.
class ChildProcess {
 public:
  /// The command's environment is this process's environment, without the variables that give a
  /// rank its place, plus `variables`. Throws UserError with the system's message if it cannot be
  /// started.
  explicit ChildProcess(const std::string& command,
                        const std::map<std::string, std::string>& variables = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Queues text for the command's standard input.
  void write(const std::string& text) { pending_ += text; }
  /// Ends the standard input after the queued text.
  void end_input() { input_ends_ = true; }
  /// Waits up to `most` for the streams, writes queued text, and reads output. If the command
  /// closes its input, the writing ends without an error.
  void exchange(std::chrono::milliseconds most);
  /// True if the command has closed both of its output streams.
  bool has_ended() const { return ends_[1] < 0 && ends_[2] < 0; }
  /// True if the command's own process has ended. Processes that the command started may still hold
  /// its streams open.
  bool has_exited() const;
  /// Standard output that the caller has not taken.
  std::string& output() { return output_; }
  /// The end of standard error, at most 2 KiB.
  const std::string& errors() const { return errors_; }
  /// Waits for the end of the command, which is killed after 2 s. Returns e.g. "returned status 1";
  /// empty: status 0.
  std::string status();

 private:
  void close(int& end);
  int wait();

  pid_t pid_ = -1;
  std::array<int, 3> ends_{-1, -1, -1};  // of standard input, output and error; -1: closed
  std::string pending_, output_, errors_;
  bool input_ends_ = false;
};

}  // namespace longspan
