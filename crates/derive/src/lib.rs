//! The derive of `backburn::Activations`, which `backburn` exports.

#![warn(missing_docs)]

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input, parse_quote};

/// Implements the trait of this name for a struct or an enum. Every field goes into the block and comes out of it: there is no
/// way to leave one out.
#[proc_macro_derive(Activations)]
pub fn activations(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    let derived = implementation(item).unwrap_or_else(Error::into_compile_error);
    derived.into()
}

fn implementation(mut item: DeriveInput) -> Result<TokenStream, Error> {
    let arms: Vec<_> = match &item.data {
        Data::Struct(data) => vec![arm(quote!(Self), &data.fields)],
        Data::Enum(data) => {
            let arms = data.variants.iter().map(|variant| {
                let name = &variant.ident;
                arm(quote!(Self::#name), &variant.fields)
            });
            arms.collect()
        }
        Data::Union(_) => {
            let reason = "nobody knows which field of a union is there: make it an enum";
            return Err(Error::new_spanned(&item.ident, reason));
        }
    };
    for parameter in item.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::backburn::Activations));
    }
    let name = &item.ident;
    let (parameters, arguments, conditions) = item.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #parameters ::backburn::Activations for #name #arguments #conditions {
            fn map_floats(self, map: &mut ::backburn::FloatMap<'_>) -> Self {
                match self {
                    #(#arms)*
                }
            }
        }
    })
}

/// Takes the variant `path` apart, and puts it together again of its mapped fields.
fn arm(path: TokenStream, fields: &Fields) -> TokenStream {
    let members: Vec<_> = fields.members().collect();
    let values: Vec<_> = (0..members.len())
        .map(|index| format_ident!("value_{index}"))
        .collect();
    let mapped = fields.iter().zip(&values).map(|(field, value)| {
        let input = &field.ty;
        // Where it is no input, the compiler points at the field.
        let function =
            quote_spanned!(input.span()=> <#input as ::backburn::Activations>::map_floats);
        quote!(#function(#value, map))
    });
    quote! {
        #path { #(#members: #values),* } => #path { #(#members: #mapped),* },
    }
}
