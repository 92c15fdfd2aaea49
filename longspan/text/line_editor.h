// Reads lines from a terminal, with editing keys and a history. No torch. (Backed by the
// `rustyline` crate, see rust/.)
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace longspan {

struct TypedLine {
  enum Kind {
    kText,
    kInterrupted,  // Ctrl-C
    kEnd,          // Ctrl-D
  } kind;
  std::string text;  // without its line end; pasted text of several lines is one text
};

/// Stdin and stdout must be a terminal. Not thread-safe.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  TypedLine read(std::string_view prompt);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace longspan
