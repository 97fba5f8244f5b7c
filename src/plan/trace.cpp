// SPDX-License-Identifier: Apache-2.0
#include "plan/trace.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <locale>
#include <sstream>

#include "files/quoted_text.h"
#include "plan/text.h"

namespace sherd {
namespace {

const char* category_of(const Span& span) {
  if (span.exchange) return "transfer";
  switch (span.action) {
    case Action::refresh:
    case Action::gather:
    case Action::reduce: return "transfer";
    case Action::stage:
    case Action::accumulate: return "kernel";
    case Action::wait:
    case Action::open:
    case Action::drain: return "wait";
    default: return "compute";
  }
}

std::string name_of(const Program& program, const Span& span) {
  if (span.unit == kNone) return to_text(span.action);
  if (span.exchange) {
    const auto& unit = program.units()[static_cast<size_t>(span.unit)].name;
    return text(to_text(*span.exchange), " ", unit);
  }
  const auto& unit = program.units()[static_cast<size_t>(span.unit)];
  const bool one_of_several = span.group != kNone && unit.groups.size() > 1;
  return text(
      to_text(span.action), " ",
      one_of_several ? unit.groups[static_cast<size_t>(span.group)].name : unit.name);
}

/// When each section was computed: one begins where the last one ends.
void add_sections(const Timeline& timeline, std::vector<TraceEvent>& events) {
  std::vector<double> ends(timeline.sections.size(), 0);
  for (const auto& span : timeline.spans) {
    if (span.stream != Stream::compute) continue;
    auto& end = ends[static_cast<size_t>(span.section)];
    end = std::max(end, span.end);
  }
  double begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    events.push_back({timeline.sections[i], "section", "section", begin, ends[i], 0});
    begin = ends[i];
  }
}

/// Writes the objects of one file.
class Writer {
 public:
  Writer() {
    out_.imbue(std::locale::classic());  // a point, whatever the user's language
    out_ << std::fixed << std::setprecision(3) << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  }

  void add(const TraceProcess& process) {
    ++number_;
    describe("process_name", 0, "name", quoted(process.name));
    describe("process_sort_index", 0, "sort_index", text(number_));
    std::vector<std::string> lanes;
    for (const auto& event : process.events) {
      auto lane = std::find(lanes.begin(), lanes.end(), event.lane);
      if (lane == lanes.end()) {
        lane = lanes.insert(lane, event.lane);
        describe("thread_name", std::ssize(lanes), "name", quoted(event.lane));
        describe("thread_sort_index", std::ssize(lanes), "sort_index", text(lanes.size()));
      }
      add(event, lane - lanes.begin() + 1);
    }
  }

  std::string finish() {
    out_ << "\n]}\n";
    return out_.str();
  }

 private:
  void begin(const char* phase, int64_t lane, const std::string& name) {
    out_ << (any_ ? ",\n" : "\n") << "{\"ph\":\"" << phase << "\",\"pid\":" << number_
         << ",\"tid\":" << lane << ",\"name\":" << name;
    any_ = true;
  }

  void describe(const char* what, int64_t lane, const char* key, const std::string& value) {
    begin("M", lane, quoted(what));
    out_ << ",\"args\":{\"" << key << "\":" << value << "}}";
  }

  void add(const TraceEvent& event, int64_t lane) {
    constexpr double kMicroseconds = 1e6;
    begin("X", lane, quoted(event.name));
    out_ << ",\"cat\":" << quoted(event.category) << ",\"ts\":" << event.begin * kMicroseconds
         << ",\"dur\":" << (event.end - event.begin) * kMicroseconds;
    if (event.bytes > 0) out_ << ",\"args\":{\"bytes\":" << event.bytes << '}';
    out_ << '}';
  }

  std::ostringstream out_;
  int64_t number_ = 0;  // of the process
  bool any_ = false;
};

}  // namespace

std::vector<TraceEvent> trace_events(const Program& program, const Timeline& timeline) {
  std::vector<TraceEvent> events;
  add_sections(timeline, events);
  for (const auto stream : {Stream::compute, Stream::gather, Stream::reduce, Stream::outer}) {
    for (const auto& span : timeline.spans) {
      if (span.stream != stream || span.end <= span.begin) continue;
      events.push_back(
          {name_of(program, span), category_of(span), to_text(stream), span.begin, span.end,
           span.bytes});
    }
  }
  return events;
}

std::string chrome_trace(std::span<const TraceProcess> processes) {
  Writer writer;
  for (const auto& process : processes) writer.add(process);
  return writer.finish();
}

}  // namespace sherd
