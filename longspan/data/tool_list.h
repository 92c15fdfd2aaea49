// The list of a row's tools in the text of a named template. No torch.
#pragma once

#include <string>

#include "longspan/data/template_format.h"
#include "longspan/text/local_time.h"

namespace longspan {

/// Returns the text of the tools of a row (Conversation::tools). `time`: the day that the format
/// may print. Throws RowError, with `place`, if the format does not print one of the tools.
std::string written_tool_list(const ToolFormat& format, const std::string& tools,
                              const LocalTime& time, const std::string& place);

}  // namespace longspan
