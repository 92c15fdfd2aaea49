#include "longspan/text/line_editor.h"

#include "longspan/text/rust_call.h"
#include "longspan/text/shown.h"

namespace longspan {

struct LineEditor::Impl {
  LsrLineEditor* handle = nullptr;
  Impl() { rust_call(lsr_line_editor_new, &handle); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { lsr_line_editor_free(handle); }
};

LineEditor::LineEditor() : impl_(std::make_unique<Impl>()) {}
LineEditor::~LineEditor() = default;

TypedLine LineEditor::read(std::string_view prompt) {
  int32_t end = 0;
  LsrString text{};
  rust_call(lsr_line_editor_read, impl_->handle, rust_view(shown(prompt)), &end, &text);
  return {end == 0   ? TypedLine::kText
          : end == 1 ? TypedLine::kInterrupted
                     : TypedLine::kEnd,
          take_rust_string(text)};
}

}  // namespace longspan
