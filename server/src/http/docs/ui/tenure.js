// Names the fields that the interface leaves without a name, and makes links within buttons text.
"use strict";
{
  const parameter = (field) => field.closest("[data-param-name]")?.dataset.paramName;
  const nameOf = (field) => {
    if (field.id === "servers") return "Server";
    if (field.classList.contains("examples-select-element")) return "Example";
    if (field.matches("textarea")) return parameter(field) ?? "Body of the request";
    return parameter(field) ?? field.dataset.variable ?? "Value";
  };
  const name = () => {
    for (const field of document.querySelectorAll("select:not([aria-label]), textarea:not([aria-label])")) {
      field.setAttribute("aria-label", nameOf(field));
    }
    for (const link of document.querySelectorAll("button.opblock-summary-control a[href]")) link.removeAttribute("href");
  };
  new MutationObserver(name).observe(document.getElementById("swagger-ui"), { childList: true, subtree: true });
  name();
}
