// SPDX-License-Identifier: Apache-2.0
#include "forecast/plan_page.h"

#include "forecast/plan_page_files.h"

namespace sherd {
namespace {

/// In JSON, `<` stands in strings alone, where `\u003c` means the same: without it no tag and no
/// comment can end or begin inside the script element.
std::string without_tags(const std::string& json) {
  std::string result;
  result.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      result += "\\u003c";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

// Names from a plan go into the page as text nodes only.
std::string plan_page(const std::string& json) {
  std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  // The page carries names that others chose: whatever they hold, nothing is fetched.
  page +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "script-src 'unsafe-inline'; style-src 'unsafe-inline'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<title>Sherd: a plan</title>\n<style>";
  page += kStyleCss;
  page += "</style></head>\n<body>";
  page += kBodyHtml;
  page += "<script type=\"application/json\" id=\"plan\">";
  page += without_tags(json);
  page += "</script>\n<script>";
  page += kTablesJs;
  page += kTimelineJs;
  page += kWorldsJs;
  page += "</script>\n</body></html>\n";
  return page;
}

}  // namespace sherd
